"""Each shipped notebook runs through in papermill: parity holds, and everything is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from executed_notebook import Executed, execute
from small_tasks import SMALL

TURNS = {"rounds": 4, "block_steps": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "your_model": TURNS,
    "data_parallel": {"images": 32, "image_size": 32, "batch_size": 4, "epochs": 1, "log_steps": 4},
    **{name: {} for name in ("communication", "index", "performance_data")},
}
PARAMETERS = {
    **{
        name: {**sizes, **TURNS, "amp_level": "O0", "processes": 1, "waterfall": False}
        for name, sizes in SMALL.items()
    },
    **OTHERS,
}


# Two of these at once might not fit into the memory of the machine.
LARGE = ("vgg16", "hf_Bart", "hf_Bert")
# All come from one template: continuous integration executes one with images, one with text, and
# one on two processes; `pytest -m thorough` all of them.
IN_CI, ON_TWO_PROCESSES = ("resnet18", "hf_Bert"), "tts_angular"


@pytest.fixture
def run(checkout: Path, tmp_path: Path, kernel: dict[str, str]) -> Callable[..., Executed]:
    """Return run("resnet50", processes=2), which executes that notebook with small parameters."""

    def execute_small(name: str, **parameters: Any) -> Executed:
        values = {**PARAMETERS[name], **parameters}
        return execute(checkout / "notebooks" / f"{name}.ipynb", tmp_path, values, kernel)

    return execute_small


def _marks(name: str) -> list[pytest.MarkDecorator]:
    group = "large notebooks" if name in LARGE else f"notebook {name}"
    return [pytest.mark.xdist_group(group), *([] if name in IN_CI else [pytest.mark.thorough])]


def check_a_tasks_notebook(executed: Executed, processes: int, comparisons: int) -> None:
    """Assert that a task's notebook shows what each of them shows, and that the variants agree.

    The launcher trained with the backend on `processes`, and without it on one.
    """
    text, figures = executed.shown()
    assert len(figures) >= 4  # and of the data, where they are no text
    parts = (
        *("GFLOP, forward and backward", "| group of operators |"),  # of the model and the profile
        "Model, loss and optimizer are those of the gallery's task",
        "1 process(es), without `--compiler-opt`: loss ",  # of the launcher
        f"{processes} process(es), with `--compiler-opt`: loss ",
        *("held-out ", "step time p50", "start-up", "gradient scale"),
        *("PyTorch eager in fp32", "reak-even"),
    )
    assert not [part for part in parts if part not in text]
    found = [json.loads(path.read_text()) for path in executed.runs.rglob("comparison.json")]
    assert len(found) == comparisons
    for values in found:
        assert list(values["variants"]) == ["baseline", "compiler-opt"]
        assert values["parity"]["passed"], values["parity"]
        assert all(v["techniques"].get("compiler") for v in list(values["variants"].values())[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in SMALL])
def test_a_tasks_notebook_shows_parity_speed_and_what_was_learned(
    run: Callable[..., Executed], name: str
) -> None:
    check_a_tasks_notebook(run(name), processes=1, comparisons=1)


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(
    "waterfall", [False, pytest.param(True, marks=[pytest.mark.thorough])], ids=["", "waterfall"]
)
def test_a_tasks_notebook_runs_on_several_processes_and_measures_techniques(
    run: Callable[..., Executed], waterfall: bool
) -> None:
    executed = run(ON_TWO_PROCESSES, processes=2, waterfall=waterfall)
    check_a_tasks_notebook(executed, processes=2, comparisons=2)
    text = executed.shown()[0]
    assert "2 processes over 1" in text and "share the same cores" in text
    assert "efficiency" not in text
    assert ("+ fused-optimizer" in text and "over the row above" in text) is waterfall
    assert ("**Not measured**: the parameter `waterfall` is False" in text) is not waterfall


MUTATIONS = {
    "the sign of the loss in the loop": (
        "scaler.scale(value).backward()",
        "scaler.scale(-value).backward()",
        "The loop is yours",
    ),
    "a learning rate of 0": ("RAdam(parameters, lr=1e-3)", "RAdam(parameters, lr=0.0)", "Yours: "),
}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_training_shows_as_a_loss_that_does_not_fall(
    mutation: str, checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    before, after, announced = MUTATIONS[mutation]
    source = (checkout / "notebooks" / "tts_angular.ipynb").read_text()
    assert source.count(before) == 1
    mutated = tmp_path / "mutated" / "tts_angular.ipynb"
    mutated.parent.mkdir()
    mutated.write_text(source.replace(before, after))
    parameters = {**PARAMETERS["tts_angular"], "batch_size": 32}
    executed = execute(mutated, tmp_path, parameters, kernel)
    text = executed.shown()[0]
    assert "**No loss fell" in text and announced in text
    (found,) = (json.loads(path.read_text()) for path in executed.runs.rglob("comparison.json"))
    # The loop is the notebook's own; the optimizer is measured below.
    own = "your_cell.py:tts_angular"
    assert found["task"].endswith(own if "learning rate" in mutation else "tts_angular")
    assert (own in text) is ("learning rate" in mutation)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("index", ["**This machine**: "]),
        ("your_model", ["PyTorch eager in", "parity passed"]),
        (
            "performance_data",
            ["| tts_angular | 8 |", "| tts_angular | 2 hosts ", "The tuner gains up to 1.30×"],
        ),
    ],
)
def test_the_other_notebooks_show_this_machine_a_readers_own_model_and_the_published_table(
    run: Callable[..., Executed], name: str, parts: list[str]
) -> None:
    text, figures = run(name).shown()
    text += "".join(figure.metadata["image/png"]["alt"] for figure in figures)
    assert not [part for part in parts if part not in text]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.whole_machine
@pytest.mark.timeout(1800)
def test_the_walk_to_several_processes_runs_and_ends_with_turns(
    run: Callable[..., Executed],
) -> None:
    text, figures = run("data_parallel").shown()
    rows = [line.split(" | ") for line in text.splitlines() if "samples/s |" in line][-5:]
    names = ["native", "accelerated", "several (2)", "mixed_precision (1)", "mixed_precision (2)"]
    assert [row[0].removeprefix("| ") for row in rows] == names
    assert rows[1][4].startswith("first loss 0.") and "×" in rows[1][2]
    assert "PyTorch eager in fp32" in text and "Rounds: 8" in text
    assert len(figures) == 1 and "native" in figures[0].metadata["image/png"]["alt"]


def test_every_notebook_has_a_test(checkout: Path) -> None:
    assert {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} == {*SMALL, *OTHERS}
