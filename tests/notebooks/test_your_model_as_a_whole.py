"""A mistake in your_model ends the notebook, or a comparison, with one message and no process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebooks.own_mistakes import MISTAKES
from refusal import refused

from gallery_lib import tasks


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
    assert text.startswith("InputError: ") and begins in text
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
        ("import torch\n\nTASK = make()\n", "'make'", "TASK = make()"),
        ("def build_model(:\n    pass\n", "SyntaxError: ", "def build_model(:"),
        ("import no_such_module\n", "'no_such_module'", "import no_such_module"),
    ):
        (tmp_path / "mine.py").write_text(source)
        with refused("model", words) as caught:
            tasks.get(f"{tmp_path}/mine.py:TASK")
        assert str(caught.value).splitlines()[1].startswith("  mine.py, line ")
        assert str(caught.value).endswith(line)
