"""What readers write into cells is trained, and each mistake is told with their own line of code.

The cells of a task's notebook are the task's own code; those of `your_model` are three functions.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import torch
from executed_notebook import execute
from papermill.exceptions import PapermillExecutionError
from refusal import refused

from gallery_lib import tasks
from gallery_lib.cli.main import main
from gallery_lib.console.user_errors import short_name
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.notebooks.cells import your_code
from gallery_lib.notebooks.plan import read_notebook
from gallery_lib.report import verdict

FUNCTIONS = ("build_model", "loss", "build_optimizer", "train")
FunctionsOf = Callable[..., dict[str, Callable[..., Any]]]


# What the loop's cell reads of the settings.
SETTINGS = SimpleNamespace(device=torch.device("cpu"), autocast_dtype=None)


@pytest.fixture
def functions_of(checkout: Path, tmp_path: Path) -> FunctionsOf:
    """Return functions_of(name, before, after): the functions that the notebook's cells define.

    In the sources of these cells `before` is replaced by `after`.
    """

    def run(name: str, before: str = "", after: str = "") -> dict[str, Callable[..., Any]]:
        names: dict[str, Any] = {"__name__": "__main__", "settings": SETTINGS}
        cells = [c.source for c in read_notebook(checkout / "notebooks" / f"{name}.ipynb").code]
        cells = [source for source in cells if any(f"def {f}(" in source for f in FUNCTIONS)]
        assert not before or sum(before in source for source in cells) == 1
        for number, source in enumerate(cells):
            path = str(tmp_path / f"cell-{number}.py")
            changed = source.replace(before, after) if before else source
            linecache.cache[path] = (len(changed), None, changed.splitlines(True), path)
            exec(compile(changed, path, "exec"), names)
        return {function: names[function] for function in FUNCTIONS}

    return run


SMOOTHING, ADAMW = (
    "label_smoothing=LABEL_SMOOTHING",
    "AdamW(parameters, lr=3e-4, weight_decay=1e-2)",
)
CLASSES = "resnet50(num_classes=classes"


@pytest.mark.parametrize(
    ("name", "before", "after", "changed"),
    [
        *((name, "", "", []) for name in tasks.names()),
        ("resnet50", f"{CLASSES})", f"{CLASSES}, width_per_group=32)", ["build_model"]),
        ("resnet50", "return cross_entropy", "return -cross_entropy", ["loss"]),
        ("speech_transformer", SMOOTHING, "label_smoothing=0.0", ["loss"]),
        ("resnet50", "lr=1e-3", "lr=0.0", ["build_optimizer"]),
        ("hf_Bert", ADAMW, "SGD(parameters, lr=0.1)", ["build_optimizer"]),
        ("tts_angular", "scaler.scale(value)", "scaler.scale(-value)", ["train"]),
    ],
)
def test_the_shipped_cells_are_the_tasks_own_and_a_change_is_found(
    name: str, before: str, after: str, changed: list[str], functions_of: FunctionsOf
) -> None:
    functions = functions_of(name, before, after)
    assert your_code.changed_names(tasks.get(name), functions) == changed


def settings() -> notebook.Settings:
    small = {"batch_size": 8, "sequence_length": 16, "amp_level": "O0", "processes": 1}
    return notebook.settings("tts_angular", small)


@pytest.mark.slow
def test_a_changed_optimizer_is_what_the_processes_train_with_until_it_is_changed_back(
    functions_of: FunctionsOf, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = functions_of("tts_angular", "RAdam(parameters, lr=1e-3)", "SGD(parameters, lr=0.5)")
    result = notebook.with_your_code(settings(), **functions)
    task = tasks.get(result.train.model)
    assert task.optimizer.in_words == "SGD, lr 0.5"
    assert task.build_model is tasks.get("tts_angular").build_model
    shown = capsys.readouterr().out
    assert "Yours: `build_optimizer`" in shown and "SGD, lr 0.5" in shown
    again = notebook.with_your_code(settings(), **functions)
    assert again.train.model == result.train.model  # a kept float64 reference is found again
    back = notebook.with_your_code(again, **functions_of("tts_angular"))
    assert back.train.model == "tts_angular" and back.task is tasks.get("tts_angular")


def test_a_changed_loop_is_announced_as_the_notebooks_alone(
    functions_of: FunctionsOf, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = functions_of("tts_angular", "scaler.scale(value)", "scaler.scale(-value)")
    result = notebook.with_your_code(settings(), **functions)
    assert result.train.model == "tts_angular"
    shown = capsys.readouterr().out
    assert "The loop is yours" in shown and "gallery's loop" in shown


def test_a_mistake_is_told_with_the_readers_line(functions_of: FunctionsOf) -> None:
    functions = functions_of("tts_angular", "model(batch[0])", "model(batch[0].flatten())")
    with pytest.raises(Exception, match="your cell, line") as caught:
        notebook.with_your_code(settings(), **functions)
    assert "model(batch[0].flatten())" in str(caught.value)


# --------------------------------------------------------------------------------------------------
# The cell of your_model


CELL = """\
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(self.first(x).relu())


def build_model():
    return Model()


def loss(model, batch):
    x, y = batch
    logits = model(x)
    return F.cross_entropy(logits, y)


def make_batch(batch_size, generator):
    x = torch.randn(batch_size, 8, generator=generator)
    y = torch.randint(3, (batch_size,), generator=generator)
    return x, y
"""
BATCH_SIZE = 4


def changed(old: str, new: str) -> str:
    assert CELL.count(old) == 1
    return CELL.replace(old, new)


RETURN_LOGITS = "return self.second(self.first(x).relu())"
RETURN_LOSS = "return F.cross_entropy(logits, y)"
LOSS, BUILD_MODEL = "def loss(model, batch):", "def build_model():"
MAKE_BATCH = "def make_batch(batch_size, generator):"

MISTAKES: dict[str, tuple[str, str, str]] = {
    # what is wrong: the cell, what the message says, the line that it shows
    "a loss that is a vector": (
        changed(RETURN_LOSS, 'return F.cross_entropy(logits, y, reduction="none")'),
        "The loss must be a tensor of one finite number, and is of shape [4].",
        LOSS,
    ),
    "a loss that is a number": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).item()"),
        "The loss must be a tensor of one finite number, and is a float.",
        LOSS,
    ),
    "a loss that is detached": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).detach()"),
        "element 0 of tensors does not require grad",
        LOSS,
    ),
    "a loss that is not finite at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).log()"),
        "The loss must be a tensor of one finite number, and is -inf.",
        LOSS,
    ),
    "a gradient that is NaN at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).sqrt()"),
        "The gradient of `first.weight` is not finite in the first step.",
        LOSS,
    ),
    "a layer of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(batch_size, 10,"),
        "mat1 and mat2 shapes cannot be multiplied (4x10 and 8x16)",
        RETURN_LOGITS,
    ),
    "loss with three arguments": (
        changed(LOSS, "def loss(model, x, y):"),
        "missing 1 required positional argument: 'y'",
        "def loss(model, x, y):",
    ),
    "a batch of arrays": (
        changed("    return x, y", "    return x.numpy(), y.numpy()"),
        "Make_batch returns tuple without a tensor.",
        MAKE_BATCH,
    ),
    "a batch of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(7, 8,").replace("(batch_size,)", "(7,)"),
        "Make_batch(4, generator) returns [7, 8] and [7], of another size than 4.",
        MAKE_BATCH,
    ),
    "a model whose layers are in a list": (
        changed(
            "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)",
            "self.layers = [nn.Linear(8, 16), nn.Linear(16, 3)]",
        ),
        "that has parameters to train, and returns a Model.",
        BUILD_MODEL,
    ),
    "no model": (
        changed("return Model()", "Model()"),
        "must return a `torch.nn.Module` that has parameters to train, and returns a NoneType.",
        BUILD_MODEL,
    ),
    "a class for a model": (
        changed("return Model()", "return Model"),
        "that has parameters to train, and returns Model.",
        BUILD_MODEL,
    ),
    "a name of another cell": (
        changed("nn.Linear(16, 3)", "nn.Linear(16, CLASSES)"),
        "name 'CLASSES' is not defined",
        "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, CLASSES)",
    ),
    "an error of the reader's own": (
        changed("logits = model(x)", 'raise ValueError("too short")'),
        "ValueError: too short",
        'raise ValueError("too short")',
    ),
    "a precision that is fixed": (
        changed(RETURN_LOGITS, "return self.second(self.first(x.float()).relu())"),
        "The comparison trains the model in float64, too, as its reference, and there: ",
        "return self.second(self.first(x.float()).relu())",
    ),
}


@pytest.fixture
def settings_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., notebook.Settings]:
    """Return settings_of(source): what the notebook does with a cell of that source."""
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))

    def settle(source: str, **parameters: Any) -> notebook.Settings:
        path = tmp_path / "ipykernel" / "1.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        cell: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, str(path), "exec"), cell)
        return notebook.your_settings(cell["build_model"], BATCH_SIZE, parameters)

    return settle


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="some of these are mistakes only where there is no GPU"
)
def test_a_mistake_is_told_in_one_line_with_the_readers_own(
    mistake: str, settings_of: Callable[..., Any], tmp_path: Path
) -> None:
    source, says, line = MISTAKES[mistake]
    with pytest.raises(InputError) as caught:
        settings_of(source, amp_level="O0")
    message, shown = str(caught.value).splitlines()
    assert says in message
    number = [text.strip() for text in source.splitlines()].index(line) + 1
    assert shown == f"  your cell, line {number}: {line}"
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


BUILD = "def build_model():\n    return Model()"


@pytest.mark.parametrize(
    ("source", "parameters", "parameter", "shown"),
    [
        (CELL.replace("def loss", "def lose"), {}, "loss", "build_model"),
        (changed(BUILD, "build_model = Model"), {}, "build_model", "the class Model"),
        (changed(BUILD, "build_model = nn.Linear(8, 3)"), {}, "build_model", "a Linear"),
        (CELL, {"optimiser": "SGD"}, "optimiser", "`optimizer`"),
        (CELL, {"optimizer": "AdamX"}, "optimizer", "'AdamX' must be AdamW or Adam or SGD"),
        (CELL, {"learning_rate": -1}, "learning_rate", "learning_rate=-1"),
        (CELL, {"data_dir": "x"}, "data_dir", "`data_dir`"),
    ],
)
def test_a_cell_without_the_functions_or_a_wrong_parameter_is_refused_before_anything_is_tried(
    source: str,
    parameters: dict[str, Any],
    parameter: str,
    shown: str,
    settings_of: Callable[..., Any],
    tmp_path: Path,
) -> None:
    with refused(parameter, shown):
        settings_of(source, **parameters)
    assert not (tmp_path / "cache" / "cells").exists()


def test_a_cell_that_is_right_is_settled_and_the_same_cell_is_found_again(
    settings_of: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_rng_state()
    settings = settings_of(CELL)
    assert torch.equal(torch.get_rng_state(), before)  # the first pass draws from its own
    assert settings.task.optimizer.in_words == "AdamW, lr 0.001"
    assert (settings.train.batch_size, settings.processes) == (BATCH_SIZE, 1)
    shown = capsys.readouterr().out
    assert "| optimizer | AdamW, lr 0.001 |" in shown and "| loss of the first batch |" in shown
    model = settings.train.model
    assert model == settings_of(CELL).train.model
    assert short_name(model) == verdict.task_name(model) == "Model"
    assert settings_of(CELL, optimizer="SGD").train.model != model


def test_optimizer_and_learning_rate_can_be_chosen(settings_of: Callable[..., Any]) -> None:
    spec = settings_of(CELL, optimizer="RMSprop", learning_rate=0.05).task.optimizer
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    optimizer = spec.build(parameters, lr=None, weight_decay=None, accelerated=False)
    assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.RMSprop, 0.05)
    assert settings_of(CELL, optimizer="RMSprop").task.optimizer.lr == 1e-2  # torch's own
    assert settings_of(CELL, optimizer="SGD").task.optimizer.arguments == {"momentum": 0.9}


@pytest.mark.slow
def test_what_differs_between_kinds_of_batches_is_no_mistake(
    settings_of: Callable[..., Any],
) -> None:
    for batch, unpack in (
        ("{'x': x, 'y': y}", "x, y = batch['x'], batch['y']"),
        ("[x, (y, None, 'a word')]", "x, (y, _, _) = batch"),
    ):
        cell = changed("    return x, y", f"    return {batch}")
        settings_of(cell.replace("x, y = batch\n", f"{unpack}\n"))


@pytest.mark.slow
def test_the_notebook_ends_with_the_message_alone_and_nothing_was_started(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    source, begins, line = MISTAKES["a name of another cell"]
    content = nbformat.read(checkout / "notebooks" / "your_model.ipynb", as_version=4)
    (cell,) = [cell for cell in content.cells if cell.source.startswith("import torch")]
    cell.source = source
    path, out = tmp_path / "your_model.ipynb", tmp_path / "executed" / "out.ipynb"
    nbformat.write(content, path)
    with pytest.raises(PapermillExecutionError, match=begins):
        execute(path, out.parent, {}, kernel)
    outputs = (one.get("outputs", []) for one in nbformat.read(out, as_version=4).cells)
    (error,) = [o for found in outputs for o in found if o.output_type == "error"]
    first, second = error.traceback[0].splitlines()
    assert first.startswith("InputError: ") and begins in first
    assert second.strip().startswith("your cell, line ") and second.endswith(line)
    assert not list((out.parent / "runs").glob("*"))


@pytest.mark.slow
def test_a_task_in_a_file_is_tried_by_the_comparison_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, begins, line = MISTAKES["a loss that is a vector"]
    made = "from gallery_lib.tasks.domains.own_functions import task_from\n"
    made += "TASK = task_from(build_model, loss, make_batch)\n"
    (tmp_path / "mine.py").write_text(source + made)
    assert main(["compare", "--model", f"{tmp_path}/mine.py:TASK"]) == 2
    message, shown = capsys.readouterr().err.splitlines()[-2:]
    assert message == f"error: {begins.replace('[4]', '[8]')}"
    assert shown.startswith("  mine.py, line ") and shown.endswith(line)


def test_a_task_file_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path) -> None:
    for source, words, line in (
        ("import torch\n\nTASK = make()\n", "'make'", "TASK = make()"),
        ("def build_model(:\n    pass\n", "SyntaxError: ", "def build_model(:"),
        ("import no_such_module\n", "'no_such_module'", "import no_such_module"),
    ):
        (tmp_path / "mine.py").write_text(source)
        with refused("model", words) as caught:
            tasks.get(f"{tmp_path}/mine.py:TASK")
        assert str(caught.value).splitlines()[1].startswith("  mine.py, line ")
        assert str(caught.value).endswith(line)
