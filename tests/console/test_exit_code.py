"""A command that is told to end does so with an exit code, one line, and nothing half-written."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.console.exit_code import Parser, exit_code_of

PRINTING = """
import sys
from gallery_lib.console.exit_code import exit_code_of

def body():
    for number in range({lines}):
        print(number)
    return {code}

sys.exit(exit_code_of(body, error_prefix="error", interrupted="stopped"))
"""


@pytest.mark.parametrize(("lines", "code"), [(2, 0), (2, 3), (100_000, 0)])
def test_a_command_whose_output_nobody_reads_any_more_ends_in_silence(
    lines: int, code: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PRINTING.format(lines=lines, code=code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (141, "")


def test_another_broken_pipe_stays_a_defect_of_ours() -> None:
    def body() -> None:
        raise BrokenPipeError("a process that was to read has ended")

    with pytest.raises(BrokenPipeError):
        exit_code_of(body, error_prefix="error", interrupted="stopped")


def run(source: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program that a line of the shell connects."""
    words = ["bash", "-c", f'"$0" -c "$1" {shell}', sys.executable, source]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_output_that_cannot_be_written_is_one_line() -> None:
    done = run(PRINTING.format(lines=10, code=0), "> /dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output cannot be written: No space left on device.\n",
    )


def test_what_the_system_refuses_is_one_line_with_the_place_and_what_moves_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "runs" / "a.json"))

    assert exit_code_of(body, error_prefix="error", interrupted="stopped") == 1
    said = capsys.readouterr().err
    assert (
        said.startswith(f"error: {tmp_path}/runs/a.json: No space left on device, ")
        and said.count("\n") == 1
    )
    assert "MiB are free there. GALLERY_RUNS_DIR moves" in said


@pytest.mark.parametrize(
    ("encoding", "printed"),
    [("ascii", "1.22? ?"), ("latin-1", "1.22× ?"), ("utf-8", "1.22× €")],
)
def test_letters_that_a_terminal_lacks_are_replaced(encoding: str, printed: str) -> None:
    source = "import sys; from gallery_lib.console.exit_code import exit_code_of\n"
    source += (
        "sys.exit(exit_code_of(lambda: print('1.22\\u00d7 \\u20ac'), "
        "error_prefix='e', interrupted='i'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert (done.returncode, done.stdout.decode(encoding).strip(), done.stderr) == (0, printed, b"")


def test_what_an_interrupted_import_leaves_is_no_defect_of_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot import name 'x' from partially initialized module 'y'")

    assert exit_code_of(body, error_prefix="error", interrupted="stopped") == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("given", [["--claases", "3"], ["--claases=3", "--seed=1"]])
def test_a_misspelt_option_of_a_script_is_answered_with_the_one_that_was_meant(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="script.py")
    parser.add_argument("--classes", type=int)
    parser.add_argument("--seed", type=int)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(". Did you mean `--classes`?")
