"""Progress display: a clock per phase, on a terminal and as plain lines."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gallery_lib.console.progress import Progress, progress_display

COUNTS = """
from gallery_lib.console.progress import Progress
with Progress(line_seconds=0.0) as progress:
    progress.show("data")
    for step in (1, 2, 3):
        progress.show("training", count=step, total=3)
"""
FAILS = """
import time
from gallery_lib.console.progress import Progress
try:
    with Progress() as progress:
        progress.show("imports")
        time.sleep(2.5)  # work that cannot be asked
        1 / 0
except ZeroDivisionError:
    print("failed")
"""


def on_a_terminal(code: str, checkout: Path, **variables: str) -> str:
    """Return what the code writes to a terminal."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (30, 100))
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    environment.pop("COLUMNS", None)  # Python's readline sets it, also for workers of pytest
    with os.fdopen(terminal, "rb") as screen:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            **{"stdout": other_end, "stderr": other_end, "cwd": checkout, "env": environment},
        )
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # what the end of a terminal gives
            while part := screen.read1(65536):
                shown += part
    assert process.wait(timeout=60) == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_has_one_line_below_the_log_and_leaves_how_long_it_took(checkout: Path) -> None:
    code = COUNTS.replace("for step", "progress.say('a line')\n    for step")
    shown = on_a_terminal(code.replace('"data"', '"x" * 200'), checkout)
    first, second = "x" * 98 + "…\x1b[K", "training: 1 of 3 steps, 0 s\x1b[K"
    states = ["", first, "\x1b[Ka line\n", first, second, "done in 0 s\x1b[K\n"]
    assert shown.split("\r") == states


def test_the_clock_of_a_terminal_ticks_and_an_error_takes_the_line_away(checkout: Path) -> None:
    shown = on_a_terminal(FAILS, checkout)
    states = [state.removesuffix("\x1b[K") for state in shown.split("\r")[1:]]
    assert states == ["imports: 0 s", "imports: 1 s", "imports: 2 s", "\x1b[Kfailed\n"]


def test_a_pipe_and_a_dumb_terminal_get_plain_lines(checkout: Path) -> None:
    lines = ["data: 0 s", *(f"training: {step} of 3 steps, 0 s" for step in (1, 2, 3))]
    piped = subprocess.run(
        [sys.executable, "-c", COUNTS], capture_output=True, text=True, cwd=checkout, check=True
    )
    dumb = on_a_terminal(COUNTS, checkout, TERM="dumb")
    assert piped.stderr == dumb == "\n".join([*lines, "done in 0 s", ""])


def test_a_line_comes_when_a_phase_begins_and_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = 1000.0
    with Progress(line_seconds=10.0, clock=lambda: seconds) as progress:
        progress.show("data")
        for _ in range(25):
            progress.show("compiling, graph 1")
            seconds += 1
        progress.show("model", began=seconds - 5)
    assert capsys.readouterr().err.splitlines() == [
        "data: 0 s",
        *(f"compiling, graph 1: {elapsed} s" for elapsed in (0, 10, 20)),
        *("model: 5 s", "done in 25 s"),
    ]


@pytest.mark.parametrize("given", [True, False])
def test_what_is_not_wanted_is_not_shown(given: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(Progress(enabled=False) if given else False) as progress:
        progress.show("data")
        progress.say("a line of the log")
    assert capsys.readouterr() == ("a line of the log\n", "")
