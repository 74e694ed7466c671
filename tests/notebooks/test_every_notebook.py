"""Each shipped notebook, run by papermill with small parameters: it runs through, parity holds, and all is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from notebook_lanes import Executed, Lanes, execute
from small_tasks import SMALL

YOUR_MODEL = "your_model"
TURNS = {"rounds": 4, "block_steps": 2}
OTHERS: dict[str, dict[str, Any]] = {
    YOUR_MODEL: {**TURNS, "processes": 1},
    "data_parallel": {"images": 32, "image_size": 32, "batch_size": 4, "epochs": 1, "log_steps": 4},
    "index": {},
}
PARAMETERS = {**{name: {**sizes, **TURNS, "amp_level": "O0", "processes": 1} for name, sizes in SMALL.items()}, **OTHERS}


@pytest.fixture(scope="module")
def lanes(
    checkout: Path, kernel: dict[str, str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Lanes]:
    """The notebooks that the selected tests ask for, two at a time."""
    here = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.params.get("name") if hasattr(item, "callspec") else YOUR_MODEL for item in here}
    sources = {name: checkout / "notebooks" / f"{name}.ipynb" for name in (*SMALL, YOUR_MODEL) if name in asked}
    running = Lanes(sources, PARAMETERS, tmp_path_factory.mktemp("notebooks"), kernel)
    yield running
    running.close()


def shown(code: list[Any]) -> tuple[str, list[Any]]:
    """All Markdown that was displayed, and the figures; neither needs JavaScript or HTML that a reader has to trust."""
    outputs = [output for cell in code for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
    assert all("text/html" not in output.data and "application/javascript" not in output.data for output in outputs)
    figures = [output for output in outputs if "image/png" in output.data]
    assert all(len(figure.metadata["image/png"]["alt"]) > 30 for figure in figures)
    return "\n".join(output.data["text/markdown"] for output in outputs if "text/markdown" in output.data), figures


def check_a_tasks_notebook(executed: Executed, comparisons: int) -> None:
    """It shows what each task's notebook shows, for so many comparisons, and baseline and backend train alike."""
    text, figures = shown(executed.code)
    assert len(figures) >= 4
    for part in ("step time p50", "start-up", "gradient scale", "compiler-opt against baseline", "Break-even", "before", "after"):
        assert part in text
    found = [json.loads(path.read_text()) for path in executed.runs.rglob("comparison.json")]
    assert len(found) == comparisons
    for values in found:
        assert list(values["variants"]) == ["baseline", "compiler-opt"]
        assert values["parity"]["passed"], values["parity"]
        assert all(v["techniques"].get("compiler") for v in list(values["variants"].values())[1:])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", list(SMALL))
def test_a_tasks_notebook_shows_parity_speed_and_what_was_learned(lanes: Lanes, name: str) -> None:
    check_a_tasks_notebook(lanes.wait(name), comparisons=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_readers_own_model_is_measured_like_the_tasks(lanes: Lanes) -> None:
    text, _ = shown(lanes.wait(YOUR_MODEL).code)
    assert "compiler-opt against baseline" in text


@pytest.mark.slow
def test_a_tasks_notebook_compares_on_several_processes(checkout: Path, tmp_path: Path, kernel: dict[str, str]) -> None:
    parameters = {**PARAMETERS["tts_angular"], "processes": 2}
    executed = execute(checkout / "notebooks" / "tts_angular.ipynb", tmp_path, parameters, kernel)
    check_a_tasks_notebook(executed, comparisons=2)
    assert "scaling efficiency" in shown(executed.code)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), [("data_parallel", "mixed_precision | 2 |"), ("index", "this machine")])
def test_the_other_notebooks_run(checkout: Path, tmp_path: Path, kernel: dict[str, str], name: str, part: str) -> None:
    executed = execute(checkout / "notebooks" / f"{name}.ipynb", tmp_path, OTHERS[name], kernel)
    assert part in shown(executed.code)[0]


def test_the_committed_notebooks_are_what_their_sources_give(checkout: Path) -> None:
    command = [sys.executable, str(checkout / "notebooks" / "build.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_every_notebook_has_a_test(checkout: Path) -> None:
    assert {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} == {*SMALL, *OTHERS}
