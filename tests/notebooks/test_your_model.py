"""The notebook your_model explains each mistake in the three functions in one line.

The reader's own line of code stands beside the explanation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from gallery_lib import tasks
from gallery_lib.config import YourModelConfig, options
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.tasks.domains.own_functions import OPTIMIZERS

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


@pytest.fixture
def settings_of(tmp_path: Path) -> Callable[..., notebook.Settings]:
    """Return settings_of(source): what the notebook does with a cell of that source."""

    def settle(source: str, **parameters: Any) -> notebook.Settings:
        path = tmp_path / "ipykernel" / "1.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        cell: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, str(path), "exec"), cell)
        return notebook.your_settings(cell["build_model"], BATCH_SIZE, parameters)

    return settle


def changed(old: str, new: str, more: str = "") -> str:
    assert CELL.count(old) == 1
    return CELL.replace(old, new) + more


OUTPUT_CLASS = """

class Output(dict):
    logits = property(lambda self: self["logits"])
"""
RETURN_LOGITS = "return self.second(self.first(x).relu())"
RETURN_LOSS = "return F.cross_entropy(logits, y)"

MISTAKES: dict[str, tuple[str, str, str]] = {
    # what is wrong: the cell, what the message begins with, the line that it shows
    "a loss that is a vector": (
        changed(RETURN_LOSS, 'return F.cross_entropy(logits, y, reduction="none")'),
        "The loss has the shape [4]; it must be one number. Return its `.mean()`.",
        'return F.cross_entropy(logits, y, reduction="none")',
    ),
    "a loss that is a number": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).item()"),
        "The loss must be a tensor, and is a float. Leave `.item()` out.",
        "return F.cross_entropy(logits, y).item()",
    ),
    "a loss that is not returned": (
        changed(RETURN_LOSS, "F.cross_entropy(logits, y)"),
        "The loss must be a tensor, and is nothing (None): is a `return` missing?",
        "def loss(model, batch):",
    ),
    "a loss that is detached": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y).detach()"),
        "The loss does not depend on the model's parameters. Leave out `.detach()`",
        "return F.cross_entropy(logits, y).detach()",
    ),
    "a loss of predicted classes": (
        changed(RETURN_LOSS, "return (logits.argmax(1) != y).float().mean()"),
        "The loss does not depend on the model's parameters.",
        "return (logits.argmax(1) != y).float().mean()",
    ),
    "a loss that is NaN at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).log()"),
        "The loss of the first batch is -inf.",
        "return F.cross_entropy(logits, y) + (logits.sum() * 0).log()",
    ),
    "a gradient that is NaN at once": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits, y) + (logits.sum() * 0).sqrt()"),
        "The gradient of `first.weight` is not finite in the first step. Look for `sqrt(0)`",
        "return F.cross_entropy(logits, y) + (logits.sum() * 0).sqrt()",
    ),
    "an object from the model, in the loss": (
        changed(
            RETURN_LOGITS, "return Output(logits=self.second(self.first(x).relu()))", OUTPUT_CLASS
        ),
        (
            "The model returns an object, Output, with logits. An object, Output, stands where a "
            "tensor belongs. Take its tensor: `.logits`"
        ),
        RETURN_LOSS,
    ),
    "an object from the model, used like a tensor": (
        changed(
            RETURN_LOGITS, "return Output(logits=self.second(self.first(x).relu()))", OUTPUT_CLASS
        ).replace("(logits, y)", "(logits.flatten(1), y)"),
        (
            "The model returns an object, Output, with logits. An object, Output, is used like a "
            "tensor (`.flatten`). Take its tensor:"
        ),
        "return F.cross_entropy(logits.flatten(1), y)",
    ),
    "a tuple from the model": (
        changed(RETURN_LOGITS, "return self.second(self.first(x).relu()), x"),
        (
            "The model returns a tuple. A tuple or list stands where a tensor belongs. Take the "
            "element that you mean: `[0]`, say."
        ),
        RETURN_LOSS,
    ),
    "nothing from the model": (
        changed(RETURN_LOGITS, "self.second(self.first(x).relu())"),
        (
            "The model returns nothing (None). Nothing (None) stands where a tensor belongs. Is a "
            "`return` missing?"
        ),
        RETURN_LOSS,
    ),
    "a layer of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(batch_size, 10,"),
        "A linear layer takes 8 values and is given 10.",
        RETURN_LOGITS,
    ),
    "targets of another number": (
        changed("torch.randint(3, (batch_size,)", "torch.randint(3, (2 * batch_size,)"),
        "The loss is given predictions for 4 samples and targets for 8.",
        RETURN_LOSS,
    ),
    "two shapes that do not fit": (
        changed(RETURN_LOSS, "return (logits - torch.ones(5, 7)).mean()"),
        "Two tensors do not fit together: 3 values in a dimension where the other has 7.",
        "return (logits - torch.ones(5, 7)).mean()",
    ),
    "a class that the model has no output for": (
        changed(
            "torch.randint(3,",
            "torch.full_like(torch.empty(0), 0) if False else 5 + torch.randint(1,",
        ),
        "A target is class 5, and the model has no output of that number.",
        RETURN_LOSS,
    ),
    "the model on a GPU that is not there": (
        changed("return Model()", "return Model().cuda()"),
        'There is no GPU here. Leave `.cuda()` and `device="cuda"` out',
        "return Model().cuda()",
    ),
    "a batch on a GPU that is not there": (
        changed("    return x, y", '    return x.to("cuda"), y'),
        "There is no GPU here.",
        'return x.to("cuda"), y',
    ),
    "an argument that the model lacks": (
        changed("def forward(self, x):", "def forward(self, x, mask):"),
        "The call of `Model.forward` lacks 'mask'. Give it.",
        "logits = model(x)",
    ),
    "an argument that the model does not have": (
        changed("logits = model(x)", "logits = model(x, mask=None)"),
        "`Model.forward` has no argument `mask`.",
        "logits = model(x, mask=None)",
    ),
    "build_model with an argument": (
        changed("def build_model():", "def build_model(width):"),
        "`build_model` is called as `build_model()`, and takes (width).",
        "def build_model(width):",
    ),
    "loss with three arguments": (
        changed("def loss(model, batch):", "def loss(model, x, y):"),
        "`loss` is called as `loss(model, batch)`, and takes (model, x, y).",
        "def loss(model, x, y):",
    ),
    "make_batch without a generator": (
        changed("def make_batch(batch_size, generator):", "def make_batch(batch_size):"),
        "`make_batch` is called as `make_batch(batch_size, generator)`, and takes (batch_size).",
        "def make_batch(batch_size):",
    ),
    "no batch": (
        changed("    return x, y", "    x, y"),
        "Make_batch returns nothing (None). Is a `return` missing?",
        "def make_batch(batch_size, generator):",
    ),
    "a batch of arrays": (
        changed("    return x, y", "    return x.numpy(), y.numpy()"),
        (
            "Make_batch returns ndarray, with no tensor in it: `torch.from_numpy(array)` makes an "
            "array a tensor."
        ),
        "return x.numpy(), y.numpy()",
    ),
    "a batch of one array and a tensor": (
        changed("    return x, y", "    return x.numpy(), y"),
        "A NumPy array stands where a tensor belongs",
        "return self.second(self.first(x).relu())",
    ),
    "a batch of another size": (
        changed("torch.randn(batch_size, 8,", "torch.randn(7, 8,").replace("(batch_size,)", "(7,)"),
        (
            "Make_batch(4, generator) returns [7, 8] and [7], of another size than 4. "
            "Use its first argument."
        ),
        "return x, y",
    ),
    "a model without parameters": (
        changed("return Model()", "return nn.Flatten()"),
        "The model has no parameters to train.",
        "return nn.Flatten()",
    ),
    "a model whose layers are in a list": (
        changed(
            "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)",
            "self.layers = [nn.Linear(8, 16), nn.Linear(16, 3)]",
        ),
        "The model has no parameters to train. Make its layers attributes of the module",
        "return Model()",
    ),
    "a class for a model": (
        changed("return Model()", "return Model"),
        "Build_model returns the class Model; call it: `Model()`.",
        "return Model",
    ),
    "no model": (
        changed("return Model()", "Model()"),
        (
            "Build_model must return a `torch.nn.Module`, and returns nothing (None): "
            "is a `return` missing?"
        ),
        "def build_model():",
    ),
    "no gradient for any parameter": (
        changed("logits = model(x)", "logits = model(x).detach().requires_grad_()"),
        "The loss does not depend on the model's parameters.",
        RETURN_LOSS,
    ),
    "whole numbers as inputs": (
        changed(
            "torch.randn(batch_size, 8, generator=generator)",
            "torch.randint(9, (batch_size, 8), generator=generator)",
        ),
        (
            "Whole numbers are given where a layer computes with floating point. Convert in "
            "make_batch: inputs with `.float()`"
        ),
        RETURN_LOGITS,
    ),
    "floating point as class numbers": (
        changed("    return x, y", "    return x, y.float()"),
        "Floating point is given where whole numbers belong (class numbers, tokens).",
        RETURN_LOSS,
    ),
    "whole numbers in a loss": (
        changed(RETURN_LOSS, "return F.cross_entropy(logits.long(), y)"),
        "Whole numbers are given where floating point is needed.",
        "return F.cross_entropy(logits.long(), y)",
    ),
    "a name of another cell": (
        changed("nn.Linear(16, 3)", "nn.Linear(16, CLASSES)"),
        (
            "`CLASSES` is not known here: the training processes run this code as a file of its "
            "own. Import or define `CLASSES` in it."
        ),
        "self.first, self.second = nn.Linear(8, 16), nn.Linear(16, CLASSES)",
    ),
    "a module that is not there": (
        changed("return Model()", "import no_such_module; return Model()"),
        "The module `no_such_module` is not found.",
        "import no_such_module; return Model()",
    ),
    "a tensor changed in place": (
        changed(RETURN_LOGITS, "h = self.first(x).exp(); y = self.second(h); h += 1; return y"),
        "A tensor that the backward pass needs was changed in place",
        RETURN_LOSS,
    ),
    "an error of the reader's own": (
        changed("logits = model(x)", 'raise ValueError("too short")'),
        "ValueError: too short",
        'raise ValueError("too short")',
    ),
    "a precision that is fixed": (
        changed(RETURN_LOGITS, "return self.second(self.first(x.float()).relu())"),
        (
            "The comparison trains the model in float64, too, as its reference, and there: numbers "
            "of two precisions meet."
        ),
        "return self.second(self.first(x.float()).relu())",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="some of these are mistakes only where there is no GPU"
)
def test_a_mistake_is_told_in_one_line_with_the_readers_own(
    mistake: str, settings_of: Callable[..., Any], runs_dir: Path
) -> None:
    source, begins, line = MISTAKES[mistake]
    with pytest.raises(InputError) as caught:
        settings_of(source, amp_level="O0")
    message, shown = str(caught.value).splitlines()
    assert message.startswith(begins)
    (number,) = [
        number for number, text in enumerate(source.splitlines(), 1) if text.strip() == line
    ]
    assert shown == f"  your cell, line {number}: {line}"
    assert not list(runs_dir.glob("*"))  # nothing is left of it


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            CELL.replace("def loss", "def lose"),
            "the cell that defines build_model must define loss as well.",
        ),
        (
            changed("def build_model():\n    return Model()", "build_model = Model"),
            "build_model must be a function that returns the model, and is the class Model.",
        ),
        (
            changed(
                "def build_model():\n    return Model()",
                "from torch.nn import Linear\n\nbuild_model = Linear(8, 3)",
            ),
            "build_model must be a function that returns the model, and is a Linear.",
        ),
        (
            changed(
                "def build_model():\n    return Model()",
                "from statistics import mean as build_model",
            ),
            (
                "build_model is statistics.mean, of a module. Define one in the cell: `def "
                "build_model(): return statistics.mean()`."
            ),
        ),
    ],
)
def test_a_cell_without_the_three_functions_is_refused(
    source: str, message: str, settings_of: Callable[..., Any]
) -> None:
    with pytest.raises(InputError) as caught:
        settings_of(source)
    assert str(caught.value).startswith(message)


def test_a_cell_that_is_right_is_settled_and_shows_what_it_trains_with(
    settings_of: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(CELL)
    task = tasks.get(settings.train.model)
    assert (task.optimizer.name, task.optimizer.lr, task.optimizer.weight_decay) == (
        "AdamW",
        1e-3,
        0.0,
    )
    assert (settings.train.batch_size, settings.processes) == (BATCH_SIZE, 1)
    shown = capsys.readouterr().out
    for row in (
        "| optimizer | AdamW |",
        "| learning_rate | 0.001 |",
        "| loss of the first batch |",
    ):
        assert row in shown


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_can_be_chosen(
    name: str, settings_of: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    task = tasks.get(settings_of(CELL, optimizer=name, learning_rate=0.05).train.model)
    model = task.build_model()
    optimizer = task.optimizer.build(
        model.parameters(), lr=None, weight_decay=None, accelerated=False
    )
    assert type(optimizer).__name__.lower() == name
    assert optimizer.defaults["lr"] == 0.05
    shown = capsys.readouterr().out
    assert (
        f"| optimizer | {type(optimizer).__name__}" in shown and "| learning_rate | 0.05 |" in shown
    )


def test_every_optimizer_that_is_offered_is_one_that_there_is() -> None:
    assert options.choices(YourModelConfig, "optimizer") == tuple(OPTIMIZERS)


def test_the_learning_rate_is_torchs_for_the_optimizer_unless_it_is_given(
    settings_of: Callable[..., Any],
) -> None:
    assert tasks.get(settings_of(CELL, optimizer="rmsprop").train.model).optimizer.lr == 1e-2
    assert tasks.get(settings_of(CELL, optimizer="sgd").train.model).optimizer.arguments == {
        "momentum": 0.9
    }


def test_the_batch_size_is_a_parameter_too(settings_of: Callable[..., Any]) -> None:
    settings = settings_of(CELL, batch_size=6)
    assert tasks.data_of(settings.train).train[0][0].shape == (6, 8)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"optimiser": "sgd"}, "unknown parameter `optimiser`. Did you mean `optimizer`?"),
        ({"optimizer": "adamx"}, "optimizer='adamx' must be adamw or adam or sgd"),
        ({"learning_rate": -1}, "learning_rate=-1 must be at least 0"),
        ({"data_dir": "x"}, "unknown parameter `data_dir`."),
        (
            {"Linear": 3},
            "`Linear` is set in another cell, which the training processes do not run.",
        ),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_is_tried(
    parameters: dict[str, Any], message: str, settings_of: Callable[..., Any], runs_dir: Path
) -> None:
    with pytest.raises(InputError) as caught:
        settings_of(CELL, **parameters)
    assert str(caught.value).startswith(message)
    assert not runs_dir.exists()


def test_the_first_pass_leaves_random_numbers_as_they_were(settings_of: Callable[..., Any]) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    settings_of(CELL)
    assert torch.equal(torch.rand(2), expected)


def test_a_regression_with_a_loss_on_the_models_own_precision_is_no_mistake(
    settings_of: Callable[..., Any],
) -> None:
    settings_of(changed(RETURN_LOSS, "return F.mse_loss(logits, torch.ones(len(x), 3))"))


@pytest.mark.slow
def test_what_differs_between_kinds_of_batches_is_no_mistake(
    settings_of: Callable[..., Any],
) -> None:
    for batch in ("{'x': x, 'y': y}", "[x, (y, None, 'a word')]"):
        unpack = (
            "x, y = batch['x'], batch['y']" if batch.startswith("{") else "x, (y, _, _) = batch"
        )
        settings_of(
            changed("    return x, y", f"    return {batch}").replace(
                "x, y = batch\n", f"{unpack}\n"
            )
        )


def in_notebook(checkout: Path, tmp_path: Path, source: str) -> Path:
    """Write the shipped notebook with another cell of functions, and return its file."""
    notebook_ = nbformat.read(checkout / "notebooks" / "your_model.ipynb", as_version=4)
    (cell,) = [
        cell
        for cell in notebook_.cells
        if cell.cell_type == "code" and "def build_model" in cell.source
    ]
    cell.source = source
    path = tmp_path / "your_model.ipynb"
    nbformat.write(notebook_, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["a loss that is a vector", "a name of another cell"])
def test_the_notebook_ends_with_the_message_alone_and_nothing_was_started(
    mistake: str, checkout: Path, tmp_path: Path, kernel: dict[str, str], runs_dir: Path
) -> None:
    source, begins, line = MISTAKES[mistake]
    begins = begins.replace("[4]", "[16]")  # the notebook's batch size
    path = in_notebook(checkout, tmp_path, source)
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(path),
        str(tmp_path / "out.ipynb"),
        "--cwd",
        str(checkout / "notebooks"),
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **kernel}
    )
    assert result.returncode != 0
    assert begins in result.stderr and line in result.stderr
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    (error,) = [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    (text,) = error.traceback
    assert text.startswith(f"InputError: {begins}")
    assert text.splitlines()[1].strip().startswith("your cell, line ") and text.endswith(line)
    assert len(text.splitlines()) == 2
    assert not list(runs_dir.glob("*"))


@pytest.mark.slow
def test_a_task_in_a_file_is_tried_by_the_comparison_before_it_begins(
    tmp_path: Path, checkout: Path
) -> None:
    made = (
        "from gallery_lib.tasks.domains.own_functions import task_from\n"
        "TASK = task_from(build_model, loss, make_batch)\n"
    )
    source, begins, line = MISTAKES["a loss that is a vector"]
    (tmp_path / "mine.py").write_text(source + made)
    command = [
        sys.executable,
        "-m",
        "gallery_lib.cli.main",
        "compare",
        "--model",
        f"{tmp_path}/mine.py:TASK",
    ]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    assert result.returncode == 2
    message, shown = result.stderr.splitlines()[-2:]
    assert message == f"error: {begins.replace('[4]', '[8]')}"
    assert shown.startswith("  mine.py, line ") and shown.endswith(line)


def test_a_task_file_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path) -> None:
    for source, words, line in (
        ("import torch\n\nTASK = make()\n", "`make` is not known here", "TASK = make()"),
        ("def build_model(:\n    pass\n", "SyntaxError: ", "def build_model(:"),
        (
            "import no_such_module\n",
            "The module `no_such_module` is not found.",
            "import no_such_module",
        ),
    ):
        (tmp_path / "mine.py").write_text(source)
        with pytest.raises(InputError) as caught:
            tasks.get(f"{tmp_path}/mine.py:TASK")
        assert str(caught.value).startswith(words)
        assert str(caught.value).splitlines()[1].startswith("  mine.py, line ")
        assert str(caught.value).endswith(line)
