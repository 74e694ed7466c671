"""The losses over classes are torch's cross-entropy, also by own kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gallery_lib import tasks
from gallery_lib.data.speech.utterances import IGNORED as NO_CHARACTER
from gallery_lib.data.text.masking import IGNORED
from gallery_lib.kernels.runtime import usage

LOGITS = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24).view(4, 6) % 9


def loss_of(name: str) -> tuple[Tensor, dict[str, Any]]:
    """Return the loss of a task for LOGITS and LABELS, and what F.cross_entropy takes for it."""
    loss: Any = tasks.get(name).loss
    if name == "resnet18":
        return loss(lambda _: LOGITS[:, 0], (None, LABELS[:, 0])), {
            "input": LOGITS[:, 0],
            "target": LABELS[:, 0],
        }
    speech = name == "speech_transformer"
    ignored = NO_CHARACTER if speech else IGNORED
    labels = LABELS.masked_fill(LABELS == 3, ignored)
    whole = {"input": LOGITS.flatten(0, 1), "target": labels.flatten(), "ignore_index": ignored}
    if speech:
        batch = SimpleNamespace(features=None, lengths=None, inputs=None, labels=labels)
        return loss(lambda *_: LOGITS, batch), whole
    return loss(lambda **_: SimpleNamespace(logits=LOGITS), {"labels": labels}), whole


@pytest.mark.parametrize("name", ["resnet18", "hf_Bert", "hf_Bart", "speech_transformer"])
@pytest.mark.parametrize("own_kernel", [False, True])
def test_the_loss_is_torch_s_with_the_task_s_smoothing(name, own_kernel, monkeypatch):
    monkeypatch.setattr(usage, "used", lambda device: own_kernel)
    smoothing = 0.1 if name == "speech_transformer" else 0.0
    loss, arguments = loss_of(name)
    expected = F.cross_entropy(**arguments, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, **({} if own_kernel else {"rtol": 0, "atol": 0}))
