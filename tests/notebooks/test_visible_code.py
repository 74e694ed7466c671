"""The cells of a task's notebook are the task's own code, and what is changed there is trained."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gallery_lib import tasks
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.notebooks.cells import your_code
from gallery_lib.notebooks.plan import read_notebook

FUNCTIONS = ("build_model", "loss", "build_optimizer", "train")
Kernel = dict[str, Any]


@pytest.fixture
def kernel_of(checkout: Path, tmp_path: Path) -> Callable[..., Kernel]:
    """Return kernel_of(name, before, after): the names of the cells that define functions.

    In the sources of these cells `before` is replaced by `after`.
    """

    def run(name: str, before: str = "", after: str = "") -> Kernel:
        names: Kernel = {"__name__": "__main__", "settings": FakeSettings()}
        cells = [c.source for c in read_notebook(checkout / "notebooks" / f"{name}.ipynb").code]
        cells = [source for source in cells if any(f"def {f}(" in source for f in FUNCTIONS)]
        assert not before or sum(before in source for source in cells) == 1
        for number, source in enumerate(cells):
            path = str(tmp_path / f"cell-{number}.py")
            changed = source.replace(before, after) if before else source
            linecache.cache[path] = (len(changed), None, changed.splitlines(True), path)
            exec(compile(changed, path, "exec"), names)
        return names

    return run


class FakeSettings:
    """What the loop's cell reads of the settings."""

    device = torch.device("cpu")
    autocast_dtype = None


def functions_of(kernel: Kernel) -> dict[str, Callable[..., Any]]:
    return {name: kernel[name] for name in FUNCTIONS}


@pytest.mark.parametrize("name", tasks.names())
def test_the_shipped_cells_are_the_tasks_own(name: str, kernel_of: Callable[..., Kernel]) -> None:
    functions = functions_of(kernel_of(name))
    assert your_code.changed_names(tasks.get(name), functions) == []


SMOOTHING, ADAMW = (
    "label_smoothing=LABEL_SMOOTHING",
    "AdamW(parameters, lr=3e-4, weight_decay=1e-2)",
)
CLASSES = "resnet50(num_classes=classes"


@pytest.mark.parametrize(
    ("name", "before", "after", "function"),
    [
        ("resnet50", f"{CLASSES})", f"{CLASSES}, width_per_group=32)", "build_model"),
        ("resnet50", "return cross_entropy", "return -cross_entropy", "loss"),
        ("speech_transformer", SMOOTHING, "label_smoothing=0.0", "loss"),
        ("resnet50", "lr=1e-3", "lr=0.0", "build_optimizer"),
        ("hf_Bert", ADAMW, "SGD(parameters, lr=0.1)", "build_optimizer"),
        ("tts_angular", "scaler.scale(value)", "scaler.scale(-value)", "train"),
    ],
)
def test_a_change_is_found(
    name: str, before: str, after: str, function: str, kernel_of: Callable[..., Kernel]
) -> None:
    functions = functions_of(kernel_of(name, before, after))
    assert your_code.changed_names(tasks.get(name), functions) == [function]


def settings() -> notebook.Settings:
    small = {"batch_size": 8, "sequence_length": 16, "amp_level": "O0", "processes": 1}
    return notebook.settings("tts_angular", small)


@pytest.mark.slow
def test_a_changed_optimizer_is_what_the_processes_train_with(
    kernel_of: Callable[..., Kernel], capsys: pytest.CaptureFixture[str]
) -> None:
    functions = functions_of(
        kernel_of("tts_angular", "RAdam(parameters, lr=1e-3)", "SGD(parameters, lr=0.5)")
    )
    result = notebook.with_your_code(settings(), **functions)
    task = tasks.get(result.train.model)
    assert task.optimizer.in_words == "SGD, lr 0.5"
    assert task.build_model is tasks.get("tts_angular").build_model
    shown = capsys.readouterr().out
    assert "Yours: `build_optimizer`" in shown and "SGD, lr 0.5" in shown
    again = notebook.with_your_code(settings(), **functions)
    assert again.train.model == result.train.model  # a kept float64 reference is found again


@pytest.mark.slow
def test_changing_back_trains_the_gallerys_task_again(kernel_of: Callable[..., Kernel]) -> None:
    changed = functions_of(kernel_of("tts_angular", "lr=1e-3", "lr=1e-2"))
    other = notebook.with_your_code(settings(), **changed)
    back = notebook.with_your_code(other, **functions_of(kernel_of("tts_angular")))
    assert back.train.model == "tts_angular" and back.task is tasks.get("tts_angular")


def test_a_changed_loop_is_announced_as_the_notebooks_alone(
    kernel_of: Callable[..., Kernel], capsys: pytest.CaptureFixture[str]
) -> None:
    functions = functions_of(
        kernel_of("tts_angular", "scaler.scale(value)", "scaler.scale(-value)")
    )
    result = notebook.with_your_code(settings(), **functions)
    assert result.train.model == "tts_angular"
    shown = capsys.readouterr().out
    assert "The loop is yours" in shown and "gallery's loop" in shown


def test_a_mistake_is_told_with_the_readers_line(kernel_of: Callable[..., Kernel]) -> None:
    functions = functions_of(
        kernel_of("tts_angular", "model(batch[0])", "model(batch[0].flatten())")
    )
    with pytest.raises(Exception, match="your cell, line") as caught:
        notebook.with_your_code(settings(), **functions)
    assert "model(batch[0].flatten())" in str(caught.value)
