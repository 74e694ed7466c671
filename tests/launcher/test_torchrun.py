"""A torchrun that is started before it is known what it has to run.

Real processes are told what to run, not told, and left alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from refusal import refused
from tiny_task import config

from gallery_lib.config import LaunchConfig
from gallery_lib.launcher.job import launch
from gallery_lib.launcher.torchrun import Torchrun, _Finished
from gallery_lib.system.processes import began_at, now

ONE = LaunchConfig()


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def below(process: psutil.Process, others: list[psutil.Process]) -> list[psutil.Process]:
    """Return the supervisor and its torchrun, once they are there; `others` were there before."""
    deadline = time.monotonic() + 30
    while (
        len(started := [child for child in process.children(recursive=True) if child not in others])
        < 2
    ):
        assert time.monotonic() < deadline, "did not start"
        time.sleep(0.02)
    return started


def test_a_rank_that_is_killed_while_it_waits_for_the_others_does_not_block_torchrun() -> None:
    finished = _Finished()
    ranks = [multiprocessing.get_context("fork").Process(target=finished.wait) for _ in range(2)]
    for rank in ranks:
        rank.start()
    ranks[0].kill()
    ranks[0].join(10)
    finished.set()
    ranks[1].join(10)
    assert [rank.exitcode for rank in ranks] == [-signal.SIGKILL, 0]


IN_TORCHRUN = """
import logging, sys
from torch.distributed import run
from gallery_lib.launcher import torchrun
logger = logging.getLogger("torch.distributed.elastic.agent")
run.main = lambda arguments: logger.exception("failed")
try:
    raise ValueError("planted")
except ValueError:
    torchrun.main(["--nnodes=1"])
print([name for name in sys.modules if name == "torch._dynamo"])
"""


def test_torchrun_says_that_a_rank_has_failed_without_importing_the_compiler() -> None:
    words = [sys.executable, "-c", IN_TORCHRUN]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
    assert "failed" in said.stderr and "ValueError: planted" in said.stderr


def test_a_process_knows_when_it_began() -> None:
    before = now()
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import time; time.sleep(0.3); from gallery_lib.system.processes import began_at; "
                "print(began_at())"
            ),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert before - 0.05 < float(said.stdout) < before + 0.3
    assert abs(began_at() - began_at()) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("waiting", [0.0, 4.0], ids=["while it imports", "while it waits"])
def test_one_that_is_never_told_ends_with_the_block(waiting: float) -> None:
    others = psutil.Process().children(recursive=True)
    with refused("model", "resnet51", "`resnet50`"), Torchrun(config(), ONE) as ahead:
        started = below(psutil.Process(), others)
        time.sleep(waiting)
        assert all(process.is_running() for process in started)
        launch(config(model="resnet51"), ahead=ahead)
    assert gone(started)


@pytest.mark.slow
def test_one_that_is_never_told_ends_with_the_process_that_started_it() -> None:
    starts_one = (
        "import time; from gallery_lib.config import *; "
        "from gallery_lib.launcher.torchrun import Torchrun\n"
    )
    starts_one += "ahead = Torchrun(TrainConfig(), LaunchConfig()); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", starts_one]) as starting:
        started = below(psutil.Process(starting.pid), [])
        starting.send_signal(signal.SIGKILL)
    assert gone(started)


@pytest.mark.slow
def test_a_run_that_it_carries_out_is_the_same_and_its_start_up_counts_from_the_beginning_of_the_process(  # noqa: E501
    tmp_path: Path,
) -> None:
    expected = launch(
        config(max_steps=3, run_dir=str(tmp_path / "plain")), show_log=False, progress=False
    )
    chosen = config(max_steps=3, run_dir=str(tmp_path / "ahead"))
    with Torchrun(chosen, ONE) as ahead:
        told_after = now() - began_at()
        results = launch(chosen, ONE, show_log=False, progress=False, ahead=ahead)
    assert expected is not None and results is not None
    assert results.loss == expected.loss
    assert results.startup_seconds["total"] > told_after
    assert (tmp_path / "ahead" / "torchrun-host0.txt").exists()


@pytest.mark.slow
def test_it_is_not_used_for_other_options(tmp_path: Path) -> None:
    with (
        Torchrun(config(threads=1), ONE) as ahead,
        pytest.raises(ValueError, match="other options"),
    ):
        launch(
            config(threads=1, compiler_opt=True, run_dir=str(tmp_path / "run")), ONE, ahead=ahead
        )
    assert not any((tmp_path / "run").glob("log-*"))
