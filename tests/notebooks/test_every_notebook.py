"""Each shipped notebook runs through in papermill with small parameters.

Parity holds, and everything is shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from executed_notebook import Executed, execute
from refusal import check_refused_command
from small_tasks import SMALL

YOUR_MODEL = "your_model"
TURNS = {"rounds": 4, "block_steps": 2}
OTHERS: dict[str, dict[str, Any]] = {
    YOUR_MODEL: TURNS,
    "data_parallel": {"images": 32, "image_size": 32, "batch_size": 4, "epochs": 1, "log_steps": 4},
    # Executed in test_communication.py, and with a lab in tests/cluster/test_notebook.py.
    "communication": {},
    "index": {},
    "performance_data": {},  # executed in test_performance_data.py
}
PARAMETERS = {
    **{
        name: {**sizes, **TURNS, "amp_level": "O0", "processes": 1, "waterfall": False}
        for name, sizes in SMALL.items()
    },
    **OTHERS,
}


@pytest.fixture
def run(checkout: Path, tmp_path: Path, kernel: dict[str, str]) -> Callable[..., Executed]:
    """Return run("resnet50", processes=2), which executes that notebook.

    It is executed with its small parameters, and these.
    """

    def execute_small(name: str, **parameters: Any) -> Executed:
        return execute(
            checkout / "notebooks" / f"{name}.ipynb",
            tmp_path,
            {**PARAMETERS[name], **parameters},
            kernel,
        )

    return execute_small


LARGE = ("vgg16", "hf_Bart", "hf_Bert")
"""Large notebooks: two of these at once might not fit into the memory of the machine."""


IN_CI = "resnet18"
ON_TWO_PROCESSES = "tts_angular"


def each(names: Iterable[str]) -> Any:
    """Parametrise a test with these notebooks, each of which any process of tests may take.

    Large ones run one after another. All come from one template: continuous integration executes
    one of them, one on two processes and `your_model`, and `pytest -m thorough` the others.
    """
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(
                name,
                marks=[
                    pytest.mark.xdist_group(
                        "large notebooks" if name in LARGE else f"notebook {name}"
                    ),
                    *([pytest.mark.thorough] if name in SMALL else []),
                ],
            )
            for name in names
        ],
    )


def shown(code: list[Any]) -> tuple[str, list[Any]]:
    """Return all Markdown that was displayed, and the figures.

    Neither needs JavaScript or HTML that a reader has to trust. The one HTML in the Markdown is
    `<details>`, which JupyterLab keeps in a notebook that is not trusted.
    """
    outputs = [
        output
        for cell in code
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
    ]
    assert all(
        "text/html" not in output.data and "application/javascript" not in output.data
        for output in outputs
    )
    figures = [output for output in outputs if "image/png" in output.data]
    assert all(len(figure.metadata["image/png"]["alt"]) > 30 for figure in figures)
    return "\n".join(
        output.data["text/markdown"] for output in outputs if "text/markdown" in output.data
    ), figures


def check_a_tasks_notebook(executed: Executed, processes: int, comparisons: int) -> None:
    """Assert that a task's notebook shows what each of them shows, and that the variants agree.

    The launcher trained with the backend on so many processes, and without it on one. There are
    so many comparisons, in which baseline and backend train alike.
    """
    text, figures = shown(executed.code)
    assert len(figures) >= 6
    for part in (
        "GFLOP, forward and backward",  # of the model
        "+model, loader, optimizer = accelerate(model, loader, optimizer, settings.config)",
        "| group of operators |",  # of the profile
        "Model, loss and optimizer are those of the gallery's task",
        "| 1 | no |",  # of the launcher
        f"| {processes} | yes |",
        "held-out metric",
        "step time p50",
        "start-up",
        "gradient scale",
        "PyTorch eager in fp32",
        "reak-even",
        "before",
        "after",
    ):
        assert part in text
    found = [json.loads(path.read_text()) for path in executed.runs.rglob("comparison.json")]
    assert len(found) == comparisons
    for values in found:
        assert list(values["variants"]) == ["baseline", "compiler-opt"]
        assert values["parity"]["passed"], values["parity"]
        assert all(v["techniques"].get("compiler") for v in list(values["variants"].values())[1:])


@pytest.mark.slow
@each(name for name in SMALL if name not in (IN_CI, ON_TWO_PROCESSES))
def test_a_tasks_notebook_shows_parity_speed_and_what_was_learned(
    run: Callable[..., Executed], name: str
) -> None:
    check_a_tasks_notebook(run(name), processes=1, comparisons=1)


@pytest.mark.slow
@pytest.mark.whole_machine
def test_a_tasks_notebook_runs_on_several_processes_and_measures_techniques(
    run: Callable[..., Executed],
) -> None:
    executed = run(ON_TWO_PROCESSES, processes=2, waterfall=True)
    check_a_tasks_notebook(executed, processes=2, comparisons=2)
    text = shown(executed.code)[0]
    assert (
        "2 processes over 1" in text and "share the same cores" in text and "efficiency" not in text
    )
    assert "+ fused-optimizer" in text and "over the row above" in text


@pytest.mark.parametrize("name", SMALL)
def test_the_verdict_comes_in_the_first_third_before_profile_and_launcher(
    name: str, checkout: Path
) -> None:
    cells = json.loads((checkout / "notebooks" / f"{name}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]

    def place(call: str) -> int:
        return next(i for i, source in enumerate(code) if call in source)

    verdict = place("notebook.show_comparison(one)")
    assert verdict < len(code) / 3
    assert verdict < min(place("notebook.profile("), place("notebook.launch("))


@pytest.mark.slow
def test_what_was_measured_is_shown_again_without_training(run: Callable[..., Executed]) -> None:
    first, second = run(IN_CI), run(IN_CI)
    check_a_tasks_notebook(first, processes=1, comparisons=1)
    assert len(list(second.runs.rglob("comparison.json"))) == 1  # not measured twice
    texts = [shown(executed.code)[0] for executed in (first, second)]
    assert "and shown again" in texts[1] and "and shown again" not in texts[0]
    assert "Part 2 of 7" in texts[0]
    verdicts = [next(x for x in text.splitlines() if "(parity passed)" in x) for text in texts]
    assert verdicts[0] == verdicts[1]
    pictures = [len(shown(executed.code)[1]) for executed in (first, second)]
    assert pictures[0] == pictures[1]  # the predictions too, whose weights are gone


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
    text = shown(executed.code)[0]
    assert "**No loss fell" in text and announced in text
    (found,) = (json.loads(path.read_text()) for path in executed.runs.rglob("comparison.json"))
    # The loop is the notebook's own; the optimizer is measured below.
    own = "your_cell.py:tts_angular"
    assert found["task"].endswith(own if "learning rate" in mutation else "tts_angular")
    assert (own in text) is ("learning rate" in mutation)


@pytest.mark.slow
@each([YOUR_MODEL])
def test_a_readers_own_model_is_measured_like_the_tasks(
    run: Callable[..., Executed], name: str
) -> None:
    text, _ = shown(run(name).code)
    assert "PyTorch eager in" in text and "parity passed" in text


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.whole_machine
@pytest.mark.timeout(1800)
def test_the_walk_to_several_processes_runs_and_ends_with_turns(
    run: Callable[..., Executed],
) -> None:
    text, figures = shown(run("data_parallel").code)
    assert "mixed_precision | 1 |" in text and "mixed_precision | 2 |" in text
    rows = [line.split(" | ") for line in text.splitlines() if "samples/s |" in line][-5:]
    names = ["native", "accelerated", "several (2)", "mixed_precision (1)", "mixed_precision (2)"]
    assert [row[0].removeprefix("| ") for row in rows] == names
    assert rows[1][4].startswith("first loss 0.") and "×" in rows[1][2]
    assert "PyTorch eager in fp32" in text and "Rounds: 8" in text
    assert len(figures) == 1 and "native" in figures[0].metadata["image/png"]["alt"]


@pytest.mark.slow
def test_the_index_shows_this_machine_and_the_committed_results_of_the_nearest(
    run: Callable[..., Executed],
) -> None:
    text, figures = shown(run("index").code)
    assert "this machine" in text and "Measured on this machine: none of" in text
    assert (
        "the machine nearest to this one in the repository" in text
        and "[ResNet-50](resnet50.ipynb)" in text
    )
    (figure,) = figures
    assert "; hatched: another machine. " in figure.metadata["image/png"]["alt"]


@pytest.mark.slow
def test_the_committed_notebooks_are_what_their_sources_give(checkout: Path) -> None:
    command = [sys.executable, str(checkout / "notebooks" / "build.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_building_them_without_the_development_tools_says_what_to_install(checkout: Path) -> None:
    script = checkout / "notebooks" / "build.py"
    code = f"import runpy, sys; sys.modules['jupytext'] = None; runpy.run_path({str(script)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(script.parent)},
        timeout=60,
    )
    check_refused_command(done.returncode, done.stderr, "jupytext", "Install them: ")


def test_every_notebook_has_a_test(checkout: Path) -> None:
    assert {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} == {*SMALL, *OTHERS}
