"""Each shipped notebook runs through in papermill with small parameters.

Parity holds, and everything is shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from executed_notebook import Executed, execute
from refusal import check_refused_command
from small_tasks import SMALL
from worker_processes import workers_of

YOUR_MODEL = "your_model"
TURNS = {"rounds": 4, "block_steps": 2}
OTHERS: dict[str, dict[str, Any]] = {
    YOUR_MODEL: TURNS,
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


LARGE = ("vgg16", "hf_Bart", "hf_Bert")
"""Large notebooks: two of these at once might not fit into the memory of the machine."""
IN_CI, ON_TWO_PROCESSES = "resnet18", "tts_angular"
"""All come from one template, of which continuous integration executes the first up to what was
learned, the second whole on two processes, and `your_model`; `pytest -m thorough` all of them."""


@pytest.fixture
def run(checkout: Path, tmp_path: Path, kernel: dict[str, str]) -> Callable[..., Executed]:
    """Return run("resnet50", processes=2), which executes that notebook with small parameters.

    With `until`, it is executed as far as the cell with these words.
    """

    def execute_small(name: str, until: str = "", **parameters: Any) -> Executed:
        source = checkout / "notebooks" / f"{name}.ipynb"
        if until:
            content = json.loads(source.read_text())
            sources = ["".join(cell["source"]) for cell in content["cells"]]
            last = next(i for i, text in enumerate(sources) if until in text)
            content["cells"] = content["cells"][: last + 1]
            source = tmp_path / "cut" / source.name
            source.parent.mkdir(exist_ok=True)
            source.write_text(json.dumps(content))
        return execute(source, tmp_path, {**PARAMETERS[name], **parameters}, kernel)

    return execute_small


def _marks(name: str) -> list[pytest.MarkDecorator]:
    group = "large notebooks" if name in LARGE else f"notebook {name}"
    return [pytest.mark.thorough, pytest.mark.xdist_group(group)]


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
    text = shown(executed.code)[0]
    assert (
        "2 processes over 1" in text and "share the same cores" in text and "efficiency" not in text
    )
    if waterfall:
        assert "+ fused-optimizer" in text and "over the row above" in text
    else:
        assert "**Not measured**: the parameter `waterfall` is False" in text


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
    first, second = (run(IN_CI, until="notebook.show_learned(") for _ in range(2))
    (found,) = (json.loads(path.read_text()) for path in second.runs.rglob("comparison.json"))
    assert found["parity"]["passed"], found["parity"]  # not measured twice
    texts, figures = zip(*(shown(executed.code) for executed in (first, second)), strict=True)
    assert "and shown again" in texts[1] and "and shown again" not in texts[0]
    for part in ("Part 2 of 7", "step time p50", "gradient scale", "held-out metric", "before"):
        assert part in texts[0]
    verdicts = [next(x for x in text.splitlines() if "(parity passed)" in x) for text in texts]
    assert verdicts[0] == verdicts[1]
    assert len(figures[0]) == len(figures[1]) >= 4  # the predictions too, whose weights are gone


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
def test_a_readers_own_model_is_measured_like_the_tasks(run: Callable[..., Executed]) -> None:
    text, _ = shown(run(YOUR_MODEL).code)
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


# --------------------------------------------------------------------------------------------------
# A bad parameter, and a killed worker


def papermill(checkout: Path, out: Path, **parameters: object) -> list[str]:
    words = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    command = [sys.executable, "-m", "papermill", str(checkout / "notebooks" / "resnet50.ipynb")]
    return [*command, str(out), "--cwd", str(checkout / "notebooks"), *words]


@pytest.mark.slow
def test_a_bad_parameter_stops_the_run_at_once_and_is_named(
    checkout: Path, tmp_path: Path, kernel: dict[str, str], runs_dir: Path
) -> None:
    command = papermill(checkout, tmp_path / "out.ipynb", batch_size="abc")
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **kernel}
    )
    assert result.returncode != 0
    assert "batch_size='abc' must be a whole number" in result.stderr
    assert not runs_dir.exists()  # nothing was started


@pytest.mark.slow
def test_killing_a_worker_fails_the_notebook_with_the_reason_and_leaves_no_process(
    checkout: Path, tmp_path: Path, kernel: dict[str, str]
) -> None:
    sizes = {"image_size": 32, "batch_size": 8, "rounds": 4, "block_steps": 3}
    command = papermill(checkout, tmp_path / "out.ipynb", **sizes)
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **kernel},
    )
    me = psutil.Process(running.pid)
    deadline = time.monotonic() + 120
    killed = False
    # Some workers, such as those of the float64 reference, end before they can be killed.
    while not killed:
        assert time.monotonic() < deadline, "no worker lasted long enough to be killed"
        assert running.poll() is None
        victim = next(iter(workers_of(me)), None)
        time.sleep(2 if victim else 0.05)
        everyone = me.children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim and victim.status() != psutil.STATUS_ZOMBIE:
                victim.kill()
                killed = True
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "did not finish" in errors
    assert "SIGKILL" in errors
    time.sleep(3)
    assert [p for p in everyone if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
