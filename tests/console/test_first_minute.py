"""The first minute of a cold start, second by second, on a terminal and through a pipe."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from terminal_recording import WIDTH, record

from gallery_lib.console.phases import read_phases

pytestmark = [pytest.mark.slow, pytest.mark.whole_machine, pytest.mark.timeout(1200)]

LABEL = re.compile(r"^([^:]+): ")


@pytest.fixture
def cold(checkout: Path, tmp_path: Path) -> dict[str, str]:
    """Return variables that give a command caches of its own, with nothing in them."""
    own = {
        "GALLERY_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    return {**os.environ, **own, "TERM": "xterm-256color", "PYTHONPATH": str(checkout)}


def training(checkout: Path, run_dir: Path) -> list[str]:
    """Return the command of a run that compiles, trains 30 steps of half a second and evaluates."""
    options = ["--compiler-opt", "--workers=0", "--max_steps=30", "--log_interval=5"]
    script, task = checkout / "launch_single_task.py", checkout / "tests/helpers/tiny_task.py"
    return [
        sys.executable,
        str(script),
        f"--model={task}:SLEEPING",
        *options,
        f"--run_dir={run_dir}",
    ]


def labels(lines: Sequence[str]) -> list[str]:
    """Return what was going on, in order of appearance."""
    clocks = [line for line in lines if " s" in line]
    return list(dict.fromkeys(match[1] for match in map(LABEL.match, clocks) if match))


def in_order(wanted: Sequence[str], shown: Sequence[str]) -> bool:
    """Return whether the wanted labels appear in that order."""
    rest = iter(shown)
    return all(label in rest for label in wanted)


def test_a_cold_start_shows_its_phases_and_moves_all_the_time(
    checkout: Path, tmp_path: Path, cold: dict[str, str]
) -> None:
    seen = record("launch-cold", training(checkout, tmp_path / "cold"), cold)
    assert seen.code == 0, "\n".join(seen.lines)
    assert seen.samples[1], "nothing was shown for two seconds"
    # The load of a library holds the interpreter's lock.
    stood = [line for line in seen.standstills() if "imports" not in line]
    assert not stood, "\n".join(seen.samples)
    assert all(len(line) < WIDTH for line in seen.drawn if LABEL.match(line) and " of 30 " in line)
    # A phase comes back after a graph was compiled in it, or kernels were built.
    noted = [phase.name for phase in read_phases(tmp_path / "cold")]
    every = ["model", "warm-up", "compiling, graph 1", "training", "evaluation", "ending"]
    assert in_order(every, noted), noted
    drawn = labels(seen.drawn)  # a phase that is over before anybody looks is not drawn
    assert in_order(["imports", "compiling, graph 1", "training"], drawn), drawn
    assert in_order([label for label in drawn if label in noted], noted), (drawn, noted)
    assert any(line.startswith("done in ") for line in seen.lines)
    left = [line for line in seen.lines if LABEL.match(line) and LABEL.match(line)[1] in noted]
    assert not left, "something was left over"


def test_a_pipe_gets_its_first_line_at_once_and_lines_keep_coming(
    checkout: Path, cold: dict[str, str]
) -> None:
    """A comparison also says whose phase it is."""
    task = f"--model={checkout}/tests/helpers/tiny_task.py:SLEEPING"
    options = ["--workers=0", "--rounds=8", "--block-steps=3", "--parity-steps=2"]
    words = [sys.executable, "-m", "gallery_lib.cli.main", "compare", task, *options]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    began = time.monotonic()
    with subprocess.Popen(words, text=True, env=cold, **pipes) as process:
        assert process.stderr is not None
        said = [(time.monotonic() - began, line) for line in process.stderr]
    assert process.returncode == 0
    times, lines = [0.0, *(seconds for seconds, _ in said)], [line for _, line in said]
    assert times[1] < 2.0
    assert all(after - before < 15.0 for before, after in itertools.pairwise(times[1:])), times
    assert "\r" not in "".join(lines) and lines[-1].startswith("done in ")
    phases = ["reference in float64", "baseline and compiler-opt", "baseline", "compiler-opt"]
    wanted = ["imports", *(f"SLEEPING, {phase}" for phase in (*phases, "turns"))]
    assert in_order(wanted, labels(lines)), lines
