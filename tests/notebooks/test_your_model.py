"""The notebook your_model explains each mistake in the three functions in one line.

The reader's own line of code stands beside the explanation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from notebooks.own_mistakes import BATCH_SIZE, CELL, MISTAKES, RETURN_LOSS, changed
from refusal import refused

from gallery_lib import tasks
from gallery_lib.config import YourModelConfig, options
from gallery_lib.console.user_errors import short_name
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells import task as notebook
from gallery_lib.report import verdict
from gallery_lib.tasks.domains.own_functions import OPTIMIZERS


@pytest.fixture
def shipped(checkout: Path) -> Any:
    """Return the notebook as it is shipped."""
    return nbformat.read(checkout / "notebooks" / "your_model.ipynb", as_version=4)


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


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="some of these are mistakes only where there is no GPU"
)
def test_a_mistake_is_told_in_one_line_with_the_readers_own(
    mistake: str, settings_of: Callable[..., Any], runs_dir: Path
) -> None:
    source, says, line = MISTAKES[mistake]
    with pytest.raises(InputError) as caught:
        settings_of(source, amp_level="O0")
    message, shown = str(caught.value).splitlines()
    assert says in message
    (number,) = [
        number for number, text in enumerate(source.splitlines(), 1) if text.strip() == line
    ]
    assert shown == f"  your cell, line {number}: {line}"
    assert not list(runs_dir.glob("*"))  # nothing is left of it


@pytest.mark.parametrize(
    ("source", "parameter", "value"),
    [
        (CELL.replace("def loss", "def lose"), "loss", "build_model"),
        (
            changed("def build_model():\n    return Model()", "build_model = Model"),
            "build_model",
            "the class Model",
        ),
        (
            changed(
                "def build_model():\n    return Model()",
                "from torch.nn import Linear\n\nbuild_model = Linear(8, 3)",
            ),
            "build_model",
            "a Linear",
        ),
        (
            changed(
                "def build_model():\n    return Model()",
                "from statistics import mean as build_model",
            ),
            "build_model",
            "`def build_model(): return statistics.mean()`",
        ),
    ],
)
def test_a_cell_without_the_three_functions_is_refused(
    source: str, parameter: str, value: str, settings_of: Callable[..., Any]
) -> None:
    with refused(parameter, value):
        settings_of(source)


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


def test_a_model_is_called_by_its_class_and_the_same_cell_is_found_again(
    settings_of: Callable[..., Any],
) -> None:
    one, again = settings_of(CELL), settings_of(CELL)
    assert one.train.model == again.train.model
    assert short_name(one.train.model) == verdict.task_name(one.train.model) == "Model"
    assert settings_of(CELL, optimizer="sgd").train.model != one.train.model


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
    assert options.options_of(YourModelConfig)["optimizer"].choices == tuple(OPTIMIZERS)


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
    ("name", "value", "shown"),
    [
        ("optimiser", "sgd", ["`optimiser`", "`optimizer`"]),
        ("optimizer", "adamx", ["'adamx'", "adamw or adam or sgd"]),
        ("learning_rate", -1, ["learning_rate=-1", "between 0 and"]),
        ("data_dir", "x", ["`data_dir`"]),
        ("Linear", 3, ["`Linear`", "another cell", "your cell, line 9"]),
    ],
)
def test_a_wrong_parameter_is_refused_before_anything_is_tried(
    name: str, value: Any, shown: list[str], settings_of: Callable[..., Any], runs_dir: Path
) -> None:
    with refused(name, *shown):
        settings_of(CELL, **{name: value})
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


def test_the_notebook_begins_with_the_example_and_ends_with_the_whole_diff(shipped: Any) -> None:
    code = [place for place, cell in enumerate(shipped.cells) if cell.cell_type == "code"]
    assert "def build_model" in shipped.cells[code[0]].source
    before = "\n".join(cell.source for cell in shipped.cells[: code[0]])
    assert len(before.split()) < 100  # title, what one learns and needs
    after = "\n".join(cell.source for cell in shipped.cells[code[-1] + 1 :])
    diff = after.partition("```diff\n")[2].partition("```")[0]
    assert "+model, loader, optimizer = accelerate(model, loader, optimizer, config)" in diff
    assert "resnet" not in diff
    assert re.findall(r"^## (.*)", after.partition("```diff")[2], re.MULTILINE) == ["Next steps"]


def test_the_shipped_example_is_tried_and_learns(
    shipped: Any, settings_of: Callable[..., Any]
) -> None:
    source = next(cell.source for cell in shipped.cells if cell.cell_type == "code")
    settings = settings_of(source, batch_size=16)
    data = tasks.data_of(settings.train)
    torch.manual_seed(0)
    model = settings.task.build_model()
    optimizer = settings.task.optimizer.build(
        model.parameters(), lr=None, weight_decay=None, accelerated=False
    )
    losses = []
    for number in range(8):
        optimizer.zero_grad()
        loss = settings.task.loss(model, data.train[number])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) / 3 < 0.8 * losses[0]
