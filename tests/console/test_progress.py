"""Phases of a run as rank 0 notes them, and their display, on a terminal and as plain lines."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from gallery_lib.compiler import backend
from gallery_lib.console.progress import (
    DATA,
    IMPORTS,
    MODEL,
    PHASES_FILE,
    TRAINING,
    WARM_UP,
    Phase,
    PhaseLog,
    Progress,
    progress_display,
    read_phases,
)
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.launcher.job import RunView
from gallery_lib.system.processes import now as clock_now

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
        *(f"compiling, graph 1: {elapsed} s" for elapsed in (1, 11, 21)),
        *("model: 5 s", "done in 25 s"),
    ]


@pytest.mark.parametrize("given", [True, False])
def test_what_is_not_wanted_is_not_shown(given: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_display(Progress(enabled=False) if given else False) as progress:
        progress.show("data")
        progress.say("a line of the log")
    assert capsys.readouterr() == ("a line of the log\n", "")


def test_phases_are_read_in_their_order_with_what_is_counted(tmp_path: Path) -> None:
    assert read_phases(tmp_path) == []
    log = PhaseLog(tmp_path)
    log.begin(WARM_UP)
    for _ in range(2):
        log.compilation_began()
        log.compilation_ended()
    log.begin(TRAINING, count=3, total=40)
    first, *others, last = read_phases(tmp_path)
    names = ["compiling, graph 1", "warm-up", "compiling, graph 2", "warm-up"]
    assert [first.name, *(phase.name for phase in others)] == ["warm-up", *names]
    assert (last.name, last.count, last.total) == ("training", 3, 40)
    assert first.began <= last.began <= clock_now()


def test_notices_of_forward_and_backward_and_builds_of_own_kernels_are_noticed() -> None:
    said: list[str] = []
    with backend.observed(
        lambda: said.append("graph"), lambda: said.append("build"), lambda: said.append("done")
    ):
        model = torch.compile(torch.nn.Linear(2, 2), backend="aot_eager")
        model(torch.ones(1, 2)).sum().backward()
        first = list(said)
        model(torch.ones(1, 2)).sum().backward()
        assert said == first and "graph" in said and set(said[1::2]) == {"done"}
        with kept_code.build():
            assert said[-1] == "build"
        assert said[-1] == "done"
    counted = len(said)
    torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(1, 3))
    assert len(said) == counted


def test_other_ranks_note_nothing_and_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    PhaseLog(tmp_path, enabled=False).begin(DATA)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    PhaseLog(tmp_path / "file").begin(DATA)  # no folder can be made there


def test_every_phase_is_shown_with_its_steps_also_what_passes_between_two_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = clock_now()
    progress = Progress(line_seconds=0.0, clock=lambda: now)
    shown = RunView(progress, tmp_path / "run", Phase(IMPORTS, now - 9), "alexnet")
    shown.look()
    begun = [
        Phase(DATA, now - 8),
        Phase(MODEL, now - 7),
        Phase(TRAINING, now - 6),
        Phase(WARM_UP, now - 5.999, 3, 40),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_text('{"step": 20}\n')
    (tmp_path / "run" / PHASES_FILE).write_text(json.dumps([vars(phase) for phase in begun]))
    shown.look()
    shown.look()
    said = [line.rpartition(" ")[0] for line in capsys.readouterr().err.splitlines()]
    steps = "warm-up: 20 of 40 steps, 5"
    phases = ("imports: 9", "data: 8", "model: 7", steps, steps)
    assert said == [f"alexnet: {phase}" for phase in phases]
