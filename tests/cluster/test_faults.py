"""Training on a lab goes on after a passing fault; else every rank ends and names who is gone."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.conftest import machine, processes_of

from gallery_lib.cluster import Lab
from gallery_lib.system.processes import end_supervised

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("training_in_steps.py")
TIMEOUT_SECONDS = 10.0
"""Timeout of the ranks' communication; a cable that is cut for 5 s is to be mended before."""
NOTICED_SECONDS = TIMEOUT_SECONDS + 15
"""Time in which every rank has to have ended.

It has room for the timeout, a look at which ranks still beat, and a busy machine.
"""


class Training:
    """`per_host` processes on each host of a lab, none of which anybody restarts or ends."""

    def __init__(self, lab: Lab, per_host: int, steps: int) -> None:
        self.lines: list[list[str]] = []
        self._said: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.processes = []
        total = len(lab.hosts) * per_host
        for rank in range(total):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(total),
                "LOCAL_RANK": str(rank % per_host),
                "LOCAL_WORLD_SIZE": str(per_host),
                "GROUP_RANK": str(rank // per_host),
                "MASTER_ADDR": lab.hosts[0].address,
                "MASTER_PORT": "29400",
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            command = [sys.executable, str(SCRIPT), str(steps), str(TIMEOUT_SECONDS)]
            process = lab.popen(
                rank // per_host, command, environment=variables, stdout=-1, stderr=-2, text=True
            )
            self.processes.append(process)
            self.lines.append([])
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()

    def _read(self, rank: int) -> None:
        for line in self.processes[rank].stdout:
            self.lines[rank].append(line.rstrip())
            self._said.put((rank, line.rstrip()))

    def wait_for_step(self, step: int) -> None:
        """Wait until any rank has done the step."""
        while self._said.get(timeout=60)[1] != f"step {step}":
            pass

    def ended(self, seconds: float, ranks: list[int] | None = None) -> list[tuple[int, str]]:
        """Return exit code and last line of `ranks` (all), which have to end within `seconds`."""
        until = time.monotonic() + seconds
        chosen = range(len(self.processes)) if ranks is None else ranks
        codes = [
            self.processes[rank].wait(timeout=max(0.1, until - time.monotonic())) for rank in chosen
        ]
        time.sleep(0.2)  # for what was said last
        return [(code, self.lines[rank][-1]) for code, rank in zip(codes, chosen, strict=True)]


@pytest.fixture
def lab(cache: Path) -> Iterator[Lab]:
    """Yield a lab of two hosts, and check that nothing of it is left afterwards."""
    before = machine()
    with Lab(2, rate="100mbit") as lab:
        yield lab
    assert machine() == before and processes_of(cache) == []


def test_ranks_of_which_one_is_killed_name_it(lab: Lab) -> None:
    training = Training(lab, per_host=2, steps=10_000)
    training.wait_for_step(5)
    environments = {p: Path(f"/proc/{p}/environ").read_bytes() for p in lab.processes(1)}
    os.kill(
        next(p for p, text in environments.items() if b"RANK=3" in text.split(b"\0")),
        signal.SIGKILL,
    )
    for code, last in training.ended(NOTICED_SECONDS, [0, 1, 2]):
        assert (code, last[:7]) == (1, "error: "), training.lines
        assert "rank 3 gives no sign of life" in last


@pytest.mark.thorough
def test_a_link_that_is_cut_for_good_ends_the_ranks_on_both_sides(lab: Lab) -> None:
    training = Training(lab, per_host=1, steps=10_000)
    training.wait_for_step(5)
    lab.cut(1)
    ended = training.ended(NOTICED_SECONDS)
    assert [code for code, _ in ended] == [1, 1], training.lines
    assert "rank 1 gives no sign of life: it has ended, hangs, or cannot be reached" in ended[0][1]
    assert "the store of the run does not answer: rank 0, " in ended[1][1]


@pytest.mark.thorough
def test_a_link_that_is_cut_for_5_seconds_changes_nothing(lab: Lab) -> None:
    undisturbed = Training(lab, per_host=1, steps=60).ended(60)
    assert undisturbed[0] == undisturbed[1]
    assert undisturbed[0][0] == 0 and undisturbed[0][1].startswith("weights ")
    training = Training(lab, per_host=1, steps=60)
    training.wait_for_step(5)
    lab.cut(1)
    time.sleep(5)
    assert all("step 30" not in lines for lines in training.lines)  # it does wait
    lab.mend(1)
    training.wait_for_step(30)
    assert training.ended(120) == undisturbed


def test_a_rank_that_hangs_is_named(lab: Lab, cache: Path) -> None:
    training = Training(lab, per_host=1, steps=10_000)
    training.wait_for_step(5)
    os.kill(lab.processes(1)[0], signal.SIGSTOP)  # it hangs
    code, last = training.ended(NOTICED_SECONDS, [0])[0]
    assert code == 1 and "rank 1 gives no sign of life" in last
    end_supervised(training.processes[1])
