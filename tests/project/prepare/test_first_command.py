"""The first command, whole: its lines through a pipe, and a cell that fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project.fresh_clone import Clone, add_prepared, fresh_clone
from tiny_notebooks import write_notebook

from gallery_lib.cli.prepare import kernel_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PREPARE = "export HF_HUB_OFFLINE=1 PATH=$PWD/.venv/bin:$PATH && bash prepare.sh"
SMALL = "-p rounds 4 -p block_steps 2 -p processes 1 -p waterfall false -p batch_size 16"
STAMP = """
from gallery_lib.cli.prepare import PLAIN, ROOT, STAMP, stamp_of
(ROOT / ".venv" / STAMP).write_text(stamp_of(PLAIN))
"""


@pytest.fixture(scope="module")
def clone(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone in which nothing is left to install."""
    made = fresh_clone(checkout, tmp_path_factory.mktemp("first-command"))
    add_prepared(made.root)
    python = made.root / ".venv" / "bin" / "python3"
    done = made.run(" ".join(f"'{word}'" for word in kernel_command(python)))
    assert done.returncode == 0, done.stderr
    (made.root / "stamp.py").write_text(STAMP)
    done = made.run(f"PYTHONPATH=. '{python}' stamp.py")
    assert done.returncode == 0, done.stderr
    return made


def test_a_pipe_gets_few_lines_and_the_answer_last(clone: Clone) -> None:
    done = clone.run(f"({PREPARE} --run tts_angular {SMALL}) 2>&1", seconds=1400)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 40, done.stdout
    kinds = [
        r"tts_angular: passed, (\d+) of \1 code cells in ",
        r"tts_angular: (\d.*× as fast as|no measurable difference from) PyTorch eager in ",
        r"(The machine was busy: .*)?$",
        r"notebook: +.*/tts_angular\.ipynb$",
        r"log: +.*/papermill\.txt$",
        r"Next, in ",
        r"  bash prepare\.sh --lab",
        r"  \.venv/bin/gallery run --profile quick",
        r"  \.venv/bin/gallery --help",
    ]
    end = [line for line in lines[-15:] if line and not line.startswith("      done")]
    end = end[next(i for i, line in enumerate(end) if re.match(kinds[0], line)) :]
    if not end[2].startswith("The machine"):
        end.insert(2, "")
    assert len(end) == len(kinds), done.stdout
    for line, kind in zip(end, kinds, strict=True):
        assert re.match(kind, line), done.stdout
    for line in end[3:5]:
        assert Path(line.split(": ")[1].strip()).is_file()


def test_a_failed_cell_is_named_with_its_reason(clone: Clone) -> None:
    write_notebook(clone.root, "wrong", "1", "def divide():\n    return 1 / 0", "divide()")
    done = clone.run(f"({PREPARE} --run wrong.ipynb) 2>&1")
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero, in cell 3 of 3, `divide()`" in done.stdout
    assert "Next" not in done.stdout
