"""Language models: loss, also by our kernel for large vocabularies, metrics, and transformers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made_up_text import documents
from refusal import refused
from torch import Tensor, nn
from torch.utils.data import default_collate

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.data import text
from gallery_lib.data.masking import IGNORED
from gallery_lib.data.speech.utterances import IGNORED as NO_CHARACTER
from gallery_lib.kernels import cross_entropy as own
from gallery_lib.kernels.runtime import operators, usage
from gallery_lib.tasks.domains import cross_entropy, language_modelling
from gallery_lib.tasks.task import Splits
from gallery_lib.tune.choice import without_dropout

NAMES = ("hf_Bert", "hf_Bart")


@pytest.fixture(scope="session")
def text_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a small tokenised text."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "files").mkdir()
    (folder / "files" / "all.txt").write_text("\n\n".join(documents(count=8)))
    return str(text.prepare(folder / "files", folder / "tokens").root)


def splits(name: str, text_dir: str, length: int = 32) -> Splits:
    return tasks.data_of(TrainConfig(model=name, sequence_length=length, data_dir=text_dir))


class Knowing(nn.Module):
    """Model that gives the true piece of every position the logit `logit` and all others 0.

    The test tells it the true pieces.
    """

    def __init__(self, labels: Tensor, pieces: int, logit: float) -> None:
        super().__init__()
        self.table = logit * F.one_hot(labels.clamp(min=0), pieces).float()

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table)


@pytest.mark.parametrize("name", NAMES)
def test_the_perplexity_is_the_vocabulary_of_what_knows_nothing_and_1_of_what_knows_all(
    name, text_dir
):
    task, data = tasks.get(name), splits(name, text_dir)
    batch = default_collate([data.held_out[index] for index in range(8)])
    pieces = data.held_out.text.pieces  # type: ignore[attr-defined]
    for logit, perplexity, accuracy in ((0.0, pieces, 0.0), (40.0, 1.0, 1.0)):
        model = Knowing(batch["labels"], pieces, logit)
        sums = task.metrics(model, batch)
        assert task.summary is not None
        metrics = task.summary({key: one.double() / count for key, (one, count) in sums.items()})
        assert metrics["perplexity"] == pytest.approx(perplexity, rel=1e-4)
        assert metrics["masked_accuracy"] == accuracy
        assert float(task.loss(model, batch)) == pytest.approx(math.log(perplexity), abs=1e-4)
    assert task.chance(data)["perplexity"] == pieces
    assert 1 / pieces < task.chance(data)["masked_accuracy"] < 0.5


def test_only_what_the_encoder_does_not_see_counts_for_bart(text_dir):
    data = splits("hf_Bart", text_dir)
    batch = default_collate([data.held_out[index] for index in range(8)])
    model = Knowing(batch["labels"], data.held_out.text.pieces, 40.0)  # type: ignore[attr-defined]
    model.table[batch["hidden"] == 1] = 0.0
    hits, count = tasks.get("hf_Bart").metrics(model, batch)["masked_accuracy"]
    assert int(hits) == 0 and count == int(batch["hidden"].sum()) == 8 * 9


@pytest.mark.parametrize(("name", "positions"), [("hf_Bert", 512), ("hf_Bart", 1024)])
def test_samples_longer_than_the_model_has_positions_are_refused(name, positions, text_dir):
    with refused("sequence_length", positions + 1, name, f"{positions} positions"):
        splits(name, text_dir, positions + 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_building_a_model_prints_nothing_and_opens_no_connection(name, checkout):
    code = (
        "import socket, torch\n"
        "def refuse(*arguments): raise AssertionError('a connection was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from gallery_lib import tasks\n"
        f"task = tasks.get({name!r})\n"
        "import sys; assert 'transformers' not in sys.modules\n"
        "with torch.device('meta'): model = task.build_model()\n"
        "assert model.config._attn_implementation == 'sdpa'\n"
        "assert model.config.vocab_size >= 8000\n"
    )
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-W", "error::FutureWarning", "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_transformers_draws_every_weight_that_torch_is_kept_from_drawing(name, monkeypatch):
    touched: list[nn.Module] = []

    def mark(module: nn.Module) -> None:
        touched.append(module)
        for parameter in module.parameters(recurse=False):
            nn.init.constant_(parameter, float("nan"))

    own = nn.Linear.reset_parameters, nn.Embedding.reset_parameters
    monkeypatch.setattr(language_modelling, "_left_undrawn", mark)
    model = tasks.get(name).build_model()
    assert (nn.Linear.reset_parameters, nn.Embedding.reset_parameters) == own
    assert len(touched) > 70
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for kind in (nn.Linear, nn.Embedding):
        layer = next(m for m in model.modules() if isinstance(m, kind))
        assert 0.015 < float(layer.weight.detach().std()) < 0.025  # its configuration says 0.02
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    gaps = [one.weight[one.padding_idx] for one in embeddings if one.padding_idx is not None]
    assert gaps and not any(row.detach().any() for row in gaps)


def test_layers_draw_their_weights_again_when_building_a_model_failed():
    own = nn.Linear.reset_parameters, nn.Embedding.reset_parameters
    with (
        pytest.raises(RuntimeError, match="no such model"),
        language_modelling.weights_drawn_once(),
    ):
        raise RuntimeError("no such model")
    assert (nn.Linear.reset_parameters, nn.Embedding.reset_parameters) == own


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_one_graph_and_without_dropout_the_same_twice(name, text_dir):
    task = tasks.get(name)
    model = task.build_model().train()
    data = splits(name, text_dir, 8)
    batch = default_collate([data.train[0], data.train[1]])
    assert float(task.loss(model, batch).detach()) != float(task.loss(model, batch).detach())
    without_dropout(model)
    expected = task.loss(model, batch)
    assert torch.equal(expected, task.loss(model, batch))
    expected.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(task.loss(model, batch), expected.detach())


@pytest.mark.skipif(not own.available(), reason="needs a C++ compiler with OpenMP")
@pytest.mark.parametrize(
    ("rows", "classes", "dtype", "backend", "is_ours"),
    [
        (8, 1024, torch.bfloat16, "1", True),
        (7, 1024, torch.bfloat16, "1", False),
        (8, 1024, torch.float64, "1", False),
        (64, 255, torch.float32, "1", False),
        (8, 1024, torch.float32, "0", False),
    ],
)
def test_ours_is_used_on_a_cpu_for_many_logits_of_many_classes_where_kernels_are_on(
    rows, classes, dtype, backend, is_ours, monkeypatch
):
    monkeypatch.setattr(cross_entropy, "LARGE", 8 * 1024)
    monkeypatch.setenv(COMPILER_VARIABLE, backend)
    logits, labels = torch.randn(rows, classes).to(dtype), torch.arange(rows)
    before = operators.counts()
    loss = cross_entropy.cross_entropy(logits, labels)
    exact = nn.functional.cross_entropy(logits.double(), labels)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    used = operators.counts() - before
    assert used["cross_entropy_rows", operators.KERNEL] == is_ours


@pytest.mark.parametrize("label", [-1, 1024, 2**40])
def test_a_label_outside_of_the_classes_is_an_error_on_a_cpu_as_with_torch(monkeypatch, label):
    monkeypatch.setattr(cross_entropy, "LARGE", 64)
    logits, labels = torch.randn(2, 1024), torch.tensor([label, -100])
    for backend in ("0", "1"):
        monkeypatch.setenv(COMPILER_VARIABLE, backend)
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            cross_entropy.cross_entropy(logits, labels)


LOGITS = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24).view(4, 6) % 9


def loss_of(name: str, logits: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Return the loss of a task for logits and LABELS, and what F.cross_entropy takes for it."""
    loss: Any = tasks.get(name).loss
    if name == "resnet18":
        whole = {"input": logits[:, 0], "target": LABELS[:, 0]}
        return loss(lambda _: logits[:, 0], (None, LABELS[:, 0])), whole
    speech = name == "speech_transformer"
    ignored = NO_CHARACTER if speech else IGNORED
    labels = LABELS.masked_fill(LABELS == 3, ignored)
    whole = {"input": logits.flatten(0, 1), "target": labels.flatten(), "ignore_index": ignored}
    if speech:
        batch = SimpleNamespace(features=None, lengths=None, inputs=None, labels=labels)
        return loss(lambda *_: logits, batch), whole
    return loss(lambda **_: SimpleNamespace(logits=logits), {"labels": labels}), whole


@pytest.mark.parametrize("name", ["resnet18", "hf_Bert", "hf_Bart", "speech_transformer"])
@pytest.mark.parametrize("own_kernel", [False, True])
def test_the_loss_is_torch_s_with_the_task_s_smoothing_in_fp32_at_least(
    name, own_kernel, monkeypatch
):
    monkeypatch.setattr(usage, "used", lambda device: own_kernel)
    monkeypatch.setattr(cross_entropy, "LARGE", 1)
    smoothing = 0.1 if name == "speech_transformer" else 0.0
    for given, computed in (
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.float32),
    ):
        before = operators.counts()
        loss, arguments = loss_of(name, LOGITS.to(given))
        used = {operator for operator, _ in operators.counts() - before}
        assert used == ({"cross_entropy_rows"} if own_kernel else set())
        arguments["input"] = arguments["input"].to(computed)
        expected = F.cross_entropy(**arguments, label_smoothing=smoothing)
        torch.testing.assert_close(loss, expected, **({} if own_kernel else {"rtol": 0, "atol": 0}))
