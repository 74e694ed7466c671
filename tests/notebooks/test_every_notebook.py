"""Each shipped notebook, run by papermill with small parameters: it runs through, parity holds, and all is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from small_tasks import SMALL

TURNS = {"rounds": 4, "block_steps": 2}
OTHERS: dict[str, dict[str, Any]] = {
    "your_model": TURNS,
    "data_parallel": {"images": 32, "image_size": 32, "batch_size": 4, "epochs": 1, "log_steps": 4},
    "index": {},
}


def executed(checkout: Path, folder: Path, kernel: dict[str, str], name: str, parameters: dict[str, Any]) -> list[Any]:
    """The code cells of the notebook `name` after papermill has run it with `parameters`."""
    words = [word for parameter, value in parameters.items() for word in ("-p", parameter, str(value))]
    source, out = checkout / "notebooks" / f"{name}.ipynb", folder / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), str(out), "--cwd", str(source.parent), *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=590, env={**os.environ, **kernel})
    assert result.returncode == 0, result.stderr[-3000:]
    code = [cell for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    return code


def shown(code: list[Any]) -> tuple[str, list[Any]]:
    """All Markdown that was displayed, and the figures; neither needs JavaScript or HTML that a reader has to trust."""
    outputs = [output for cell in code for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
    assert all("text/html" not in output.data and "application/javascript" not in output.data for output in outputs)
    figures = [output for output in outputs if "image/png" in output.data]
    assert all(len(figure.metadata["image/png"]["alt"]) > 30 for figure in figures)
    return "\n".join(output.data["text/markdown"] for output in outputs if "text/markdown" in output.data), figures


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMALL))
def test_a_tasks_notebook_shows_parity_speed_and_what_was_learned(
    checkout: Path, tmp_path: Path, kernel: dict[str, str], runs_dir: Path, name: str
) -> None:
    processes = 2 if name == "tts_angular" else 1  # on several is the same code for all, and takes as long again
    code = executed(checkout, tmp_path, kernel, name, {**SMALL[name], **TURNS, "amp_level": "O0", "processes": processes})
    text, figures = shown(code)
    assert len(figures) >= 4
    for part in ("step time p50", "start-up", "gradient scale", "compiler-opt against baseline", "Break-even", "before", "after"):
        assert part in text
    comparisons = [json.loads(path.read_text()) for path in runs_dir.rglob("comparison.json")]
    assert len(comparisons) == processes
    for values in comparisons:
        assert list(values["variants"]) == ["baseline", "compiler-opt"]
        assert values["parity"]["passed"], values["parity"]
        assert all(v["techniques"].get("compiler") for v in list(values["variants"].values())[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OTHERS))
def test_the_other_notebooks_run(checkout: Path, tmp_path: Path, kernel: dict[str, str], name: str) -> None:
    text, _ = shown(executed(checkout, tmp_path, kernel, name, OTHERS[name]))
    assert {"your_model": "compiler-opt against baseline", "data_parallel": "mixed_precision | 2 |", "index": "this machine"}[name] in text


def test_the_committed_notebooks_are_what_their_sources_give(checkout: Path) -> None:
    command = [sys.executable, str(checkout / "notebooks" / "build.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_every_notebook_has_a_test(checkout: Path) -> None:
    assert {path.stem for path in (checkout / "notebooks").glob("*.ipynb")} == {*SMALL, *OTHERS}
