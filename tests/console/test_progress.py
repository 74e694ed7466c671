"""Progress display: a clock per phase, on a terminal and as plain lines."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from gallery_lib.console.progress import Progress, progress_display

BAR = """
from gallery_lib.console.progress import Progress
with Progress(line_seconds=0.0) as progress:
    progress.show("data")
    for step in (1, 2, 3):
        progress.show("training", count=step, total=3)
"""


def on_a_terminal(code: str, checkout: Path, **variables: str) -> str:
    """Return what the code writes to a terminal."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (30, 100))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")
    }
    with os.fdopen(terminal, "rb") as screen:
        environment |= {"TERM": "xterm-256color", **variables}
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


def elsewhere(code: str, checkout: Path) -> list[str]:
    """Return the lines that the code writes to standard error where that is a pipe."""
    words = [sys.executable, "-c", code]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=60, cwd=checkout, check=True
    ).stderr.splitlines()


class Clock:
    """Clock whose seconds pass when the test lets them."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> Progress:
    """Return a Progress whose every line is printed."""
    return Progress(line_seconds=0.0, clock=clock)


@pytest.fixture
def last(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """Return what was shown last."""
    return lambda: capsys.readouterr().err.splitlines()[-1]


def test_the_clock_of_a_phase_ticks_while_nothing_changes(
    progress: Progress, clock: Clock, last: Callable[[], str]
) -> None:
    progress.show("data")
    clock.seconds += 4
    for elapsed in (0, 1, 2):
        progress.show("compiling, graph 1")
        assert last() == f"compiling, graph 1: {elapsed} s"
        clock.seconds += 1


def test_a_phase_that_began_before_it_was_noticed_counts_from_its_beginning(
    progress: Progress, clock: Clock, last: Callable[[], str]
) -> None:
    progress.show("data")
    clock.seconds += 70
    progress.show("model", began=clock.seconds - 5)
    assert last() == "model: 5 s"
    progress.__exit__(None, None, None)
    assert last() == "done in 1 min 10 s"


def test_a_terminal_has_one_line_below_the_log_and_leaves_what_took_how_long(
    checkout: Path,
) -> None:
    code = BAR.replace("for step", "progress.say('a line')\n    for step")
    shown = on_a_terminal(code.replace('"data"', '"x" * 200'), checkout)
    first, second = "x" * 98 + "…\x1b[K", "training: 1 of 3 steps, 0 s\x1b[K"
    states = ["", first, "\x1b[Ka line\n", first, second, "done in 0 s\x1b[K\n"]
    assert shown.split("\r") == states


def test_a_clock_ticks_during_work_that_cannot_be_asked_and_an_error_takes_the_line_away(
    checkout: Path,
) -> None:
    code = (
        "import time\n"
        "from gallery_lib.console.progress import Progress\n"
        "try:\n"
        "    with Progress() as progress:\n"
        "        progress.show('imports')\n"
        "        time.sleep(2.5)\n"
        "        1 / 0\n"
    )
    shown = on_a_terminal(code + "except ZeroDivisionError:\n    print('failed')", checkout)
    states = [state.removesuffix("\x1b[K") for state in shown.split("\r")[1:]]
    assert states == ["imports: 0 s", "imports: 1 s", "imports: 2 s", "\x1b[Kfailed\n"]


def test_a_file_and_a_dumb_terminal_get_plain_lines(checkout: Path) -> None:
    lines = ["data: 0 s", *(f"training: {step} of 3 steps, 0 s" for step in (1, 2, 3))]
    dumb = on_a_terminal(BAR, checkout, TERM="dumb").splitlines()
    assert elsewhere(BAR, checkout) == dumb == [*lines, "done in 0 s"]


def test_a_file_gets_a_line_when_a_phase_begins_and_now_and_then(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(line_seconds=10.0, clock=clock)
    progress.show("data")
    for _ in range(25):
        progress.show("compiling, graph 1")
        clock.seconds += 1
    assert capsys.readouterr().err.splitlines() == [
        "data: 0 s",
        *(f"compiling, graph 1: {seconds} s" for seconds in (0, 10, 20)),
    ]


@pytest.mark.parametrize("given", [True, False])
def test_what_is_not_wanted_is_not_shown(given: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(Progress(enabled=False) if given else False) as progress:
        progress.show("data")
        progress.say("a line of the log")
    assert capsys.readouterr() == ("a line of the log\n", "")
