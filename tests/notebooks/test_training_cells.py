"""The cells that train in the notebook's kernel: the same batches, an honest curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from made_comparison import FIGURES
from refusal import refused

from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.errors import RunFailed
from gallery_lib.measure import bench as task_bench
from gallery_lib.measure.bench import Plan
from gallery_lib.measure.bench_result import Outcome, Row
from gallery_lib.measure.variants import TECHNIQUES
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.report.bench import MEANINGS
from gallery_lib.system import hardware
from gallery_lib.system.machine_load import MachineLoad, Watch
from gallery_lib.tasks import memory_estimate

SIZES: dict[str, dict[str, Any]] = {
    "resnet18": {"batch_size": 4, "image_size": 32},
    "hf_Bert": {"batch_size": 2, "sequence_length": 16},
    "speech_transformer": {"batch_size": 4, "sequence_length": 40},
    "tts_angular": {"batch_size": 8, "sequence_length": 16},
    "pytorch_unet": {"batch_size": 2, "image_size": 64},
}


def settings_for(name: str, **parameters: Any) -> notebook.Settings:
    return notebook.settings(name, {**SIZES[name], "amp_level": "O0", "processes": 1, **parameters})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "hf_Bert" else n for n in SIZES]
)
def test_the_batches_of_a_plain_loader_are_what_the_loss_takes_and_come_again(name: str) -> None:
    settings = settings_for(name)
    batch, again = (
        next(iter(notebook.on_device(notebook.loader(settings), torch.device("cpu"))))
        for _ in range(2)
    )
    pairs = list(zip(tensors_in(batch), tensors_in(again), strict=True))
    assert pairs and all(torch.equal(one, other) for one, other in pairs)
    items = (settings.train.batch_size or 0) // settings.task.samples_per_item
    assert any(items in one.shape for one, _ in pairs)
    value = settings.task.loss(settings.task.build_model(), batch)
    value.backward()
    assert value.dim() == 0 and torch.isfinite(value)


def test_losses_that_do_not_fall_are_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.show_training(plain=[3.0, 3.0, 3.0], accelerated=[3.0, 3.0, 3.0])
    assert "**No loss fell" in capsys.readouterr().out
    notebook.show_training(plain=[3.0, 2.0, 1.0], accelerated=[3.0, 2.0, 1.0])
    shown = capsys.readouterr().out
    assert "Both losses fell" in shown and "No loss" not in shown
    with refused("accelerated", "accelerated"):
        notebook.show_training(plain=[3.0, 2.0], accelerated=[])


def test_recurrent_layers_are_said_to_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    settings = settings_for("tts_angular")
    notebook.show_model(settings, settings.task.build_model(), settings.task.loss)
    shown = capsys.readouterr().out
    assert "9.38 million parameters. One sample takes " in shown
    assert "The recurrent layers are not in it" in shown


def on_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(hardware, "gpu_count", lambda: 0)
    monkeypatch.setattr(hardware, "cores", lambda: count)


def test_a_comparison_that_does_not_fit_into_memory_leaves_the_notebook_going(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cores(monkeypatch, 2)
    monkeypatch.setattr(memory_estimate, "free_bytes", lambda: 3.0 * 2**30)
    settings = settings_for("hf_Bert", processes=2)
    capsys.readouterr()
    several = notebook.compare_on_several(settings)
    notebook.show_comparison(several)
    notebook.show_scaling(cast(Any, None), several)
    said = capsys.readouterr().out
    assert said.count("**Not measured**: hf_Bert") == said.count("3.0 GiB are free") > 0
    assert "2 process(es)" in said


@pytest.mark.parametrize(("cores", "said"), [(1, "one device"), (2, "Set `processes` to 2")])
def test_one_process_is_compared_with_none_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cores: int, said: str
) -> None:
    on_cores(monkeypatch, cores)
    notebook.show_comparison(notebook.compare_on_several(settings_for("tts_angular")))
    assert said in capsys.readouterr().out


def waterfall_of(**parameters: Any) -> Any:
    settings = settings_for("tts_angular", waterfall=True, **parameters)
    return notebook.measure_techniques(settings, "compiler", "fused-optimizer")


def test_a_waterfall_is_measured_once_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests: list[str] = []
    load = MachineLoad(0.0, waited=0.5, others=0.0)  # its own threads waited
    monkeypatch.setattr(Watch, "seen", lambda self: load)

    def measure(plan: Plan, digest: str, folder: Path, at_pause: Callable[[], None]) -> Outcome:
        digests.append(digest)
        at_pause()
        rows = {name: Row(plan.absent.get(name), **FIGURES) for name in plan.order}
        return Outcome(digest, "2026-01-02T03:04:05+0000", 1.0, None, {}, rows, [])

    monkeypatch.setattr(task_bench, "measure_task", measure)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    first = waterfall_of()
    (outcome,) = first.tasks.values()
    assert list(outcome.rows) == ["eager-fp32", "compiler", "fused-optimizer", "all others"]
    assert {*TECHNIQUES, "all others"} <= set(MEANINGS)  # each is said in words
    assert waterfall_of() == first and len(digests) == 1
    shown = capsys.readouterr().out
    assert "Measured on 2026-01-02 on this machine" in shown
    assert "Threads waited" in shown and "not kept" not in shown
    load = MachineLoad(0.0, waited=0.5, others=0.5)
    for _ in range(2):
        waterfall_of(batch_size=4)
    # Other options are measured anew, and on a busy machine each time.
    assert len(digests) == 3 and len(set(digests)) == 2
    assert "These figures are not kept." in capsys.readouterr().out


def test_a_waterfall_that_cannot_be_measured_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = Outcome("", "", 1.0, "no memory left", {}, {"eager-fp32": Row("no memory left")}, [])
    monkeypatch.setattr(task_bench, "measure_task", lambda *_, **__: failed)
    with pytest.raises(RunFailed, match="no memory left"):
        waterfall_of()
