"""Labels are smoothed as torch's cross-entropy does, where a loss is one over classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusal import refused
from torch import Tensor

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.speech.utterances import IGNORED as NO_CHARACTER
from gallery_lib.data.text.masking import IGNORED
from gallery_lib.kernels.runtime import usage
from gallery_lib.tasks.domains import own_functions

LOGITS = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24).view(4, 6) % 9


def loss_of(name: str, share: float | None) -> tuple[Tensor, dict[str, Any]]:
    """Return the loss of a task for LOGITS and LABELS, and what F.cross_entropy takes for it."""
    loss: Any = tasks.of(TrainConfig(model=name, label_smoothing=share)).loss
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
def test_the_loss_is_torch_s_with_that_smoothing(name, own_kernel, monkeypatch):
    monkeypatch.setattr(usage, "used", lambda device: own_kernel)
    default = 0.1 if name == "speech_transformer" else 0.0
    for share in (None, 0.0, 0.3):
        loss, arguments = loss_of(name, share)
        expected = F.cross_entropy(**arguments, label_smoothing=default if share is None else share)
        torch.testing.assert_close(loss, expected, **({} if own_kernel else {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("name", ["pytorch_unet", "tts_angular"])
def test_another_loss_has_no_labels_to_smooth(name):
    with refused("label_smoothing", 0.1, name):
        tasks.of(TrainConfig(model=name, label_smoothing=0.1))
    assert tasks.of(TrainConfig(model=name, label_smoothing=0.0)).loss is tasks.get(name).loss


def test_a_reader_s_own_loss_is_not_replaced_by_the_task_s():
    task = own_functions.changed("resnet18", loss=lambda model, batch: torch.zeros(()))
    with refused("label_smoothing", 0.1):
        task.with_label_smoothing(0.1)
