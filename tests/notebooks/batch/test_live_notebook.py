"""papermill with progress updated in place: what `prepare.sh --run` prints while a cell trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from terminal_recording import record

pytestmark = pytest.mark.slow

COUNTING = """
import time
from IPython.display import display
print("a line before")
handle = display({"text/plain": "training: 0 of 3 steps"}, raw=True, display_id=True)
for step in range(1, 4):
    time.sleep(1.2)
    handle.update({"text/plain": f"training: {step} of 3 steps"}, raw=True)
handle.update({"text/plain": "done in 4 s"}, raw=True)
"""


def command(folder: Path, *cells: str) -> list[str]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {
        "name": "gallery",
        "display_name": "Gallery",
        "language": "python",
    }
    nbformat.write(notebook, folder / "counting.ipynb")
    paths = [str(folder / name) for name in ("counting.ipynb", "executed.ipynb")]
    return [
        sys.executable,
        "-m",
        "gallery_lib.notebooks.batch.live_notebook",
        *paths,
        "-k",
        "gallery",
        "--log-output",
    ]


def executed(folder: Path, kernel: dict[str, str], *cells: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *cells), env={**os.environ, **kernel}, capture_output=True, text=True
    )


def test_a_pipe_gets_the_last_state_and_what_is_printed_after_it(
    kernel: dict[str, str], tmp_path: Path
) -> None:
    done = executed(tmp_path, kernel, COUNTING, "print('a line after')")
    assert done.returncode == 0, done.stderr
    wanted = [
        "a line before",
        "training: 0 of 3 steps",
        "training: 1 of 3 steps",
        "done in 4 s",
        "a line after",
    ]
    assert [line for line in done.stderr.splitlines() if line in wanted] == wanted
    written = nbformat.read(tmp_path / "executed.ipynb", as_version=4)
    assert written.cells[0].outputs[-1].data["text/plain"] == "done in 4 s"


def test_a_terminal_gets_each_state_in_one_line(kernel: dict[str, str], tmp_path: Path) -> None:
    seen = record(
        "papermill", command(tmp_path, COUNTING), {**os.environ, **kernel, "TERM": "xterm-256color"}
    )
    assert seen.code == 0
    assert [line for line in seen.drawn if line.startswith("training: ")][-3:] == [
        f"training: {step} of 3 steps" for step in (1, 2, 3)
    ]
    assert "done in 4 s" in seen.lines and not any(
        line.startswith("training: 2") for line in seen.lines
    )


def test_a_cell_that_fails_ends_it_as_it_ends_papermill(
    kernel: dict[str, str], tmp_path: Path
) -> None:
    done = executed(tmp_path, kernel, "1 / 0", "print('never')")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr and "never\n" not in done.stderr
