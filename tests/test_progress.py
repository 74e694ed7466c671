"""Progress, and what it turns into where nothing can be drawn over; colours go when that is asked for."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

BAR = """
from gallery_lib.progress import Progress
bar = Progress("training", 3, line_seconds=0.0)
for step in (1, 2, 3):
    bar.update(step)
bar.close()
"""
TABLE = """
from gallery_lib.batch import live
from gallery_lib.batch.record import Record, Report
record = Record("failed", "it raised", 65.0, "2026-11-21T12:00:00+0000", 1, False, {}, "abc", "alexnet")
with live.shown(1) as observer:
    observer.goes_on([], Report("gallery run", "", None, None, 65.0, {}, {}, {"alexnet": record}))
    observer.ended("alexnet", record)
"""
COLOUR = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3[0-8]|9[0-7])(?:;[\d;]*)?m")


def on_a_terminal(code: str, checkout: Path, **variables: str) -> str:
    """What the code writes to a terminal."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (30, 100))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    with os.fdopen(terminal, "rb") as screen:
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(
            command, stdout=other_end, stderr=other_end, cwd=checkout, env={**environment, "TERM": "xterm-256color", **variables}
        )
        os.close(other_end)
        shown = b""
        with contextlib.suppress(OSError):  # what the end of a terminal gives
            while part := screen.read1(65536):
                shown += part
    assert process.wait(timeout=60) == 0, shown.decode()
    return shown.decode()


def elsewhere(code: str, checkout: Path) -> tuple[str, str]:
    """What the code writes to standard output and to standard error where they are pipes."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=checkout, check=True)
    return result.stdout, result.stderr


def test_a_bar_is_drawn_over_on_a_terminal(checkout: Path) -> None:
    shown = on_a_terminal(BAR, checkout)
    assert "3/3" in shown and "\r" in shown.replace("\r\n", "\n")


def test_a_bar_becomes_plain_lines_in_a_file_and_on_a_dumb_terminal(checkout: Path) -> None:
    for shown in (elsewhere(BAR, checkout)[1], on_a_terminal(BAR, checkout, TERM="dumb").replace("\r\n", "\n")):
        assert "\r" not in shown and "\x1b" not in shown
        assert [line.partition(" [")[0][-3:] for line in shown.splitlines()] == ["1/3", "2/3", "3/3"]


def test_the_table_of_a_batch_has_colours_unless_they_are_switched_off(checkout: Path) -> None:
    assert COLOUR.search(on_a_terminal(TABLE, checkout))
    plain = on_a_terminal(TABLE, checkout, NO_COLOR="1")
    assert "it raised" in plain and not COLOUR.search(plain)


@pytest.mark.parametrize("dumb", [True, False])
def test_the_table_becomes_plain_lines_in_a_file_and_on_a_dumb_terminal(checkout: Path, dumb: bool) -> None:
    shown = on_a_terminal(TABLE, checkout, TERM="dumb").replace("\r\n", "\n") if dumb else elsewhere(TABLE, checkout)[0]
    assert shown == "[1/1] alexnet: failed after 1 min 5 s: it raised\n"
