"""Training on a lab goes on after a passing fault; else every rank ends and names who is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster.conftest import processes_of
from worker_processes import wait_until

from gallery_lib.cluster import Lab
from gallery_lib.system.processes import end_supervised

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("training_in_steps.py")
# Timeout of the ranks' communication; a cable that is cut for 5 s is to be mended before.
TIMEOUT_SECONDS = 10.0
# Every rank has to have ended by then: a look at which ranks still beat, and a busy machine.
NOTICED_SECONDS = TIMEOUT_SECONDS + 35


class Training:
    """`per_host` processes on each host of a lab, none of which anybody restarts or ends."""

    def __init__(self, lab: Lab, folder: Path, per_host: int, steps: int) -> None:
        self.processes, self._logs = [], []
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
            self._logs.append(folder / f"steps{steps}-rank{rank}.txt")
            with self._logs[-1].open("w") as log:
                self.processes.append(
                    lab.popen(
                        rank // per_host, command, environment=variables, stdout=log, stderr=log
                    )
                )

    @property
    def lines(self) -> list[list[str]]:
        return [log.read_text().splitlines() for log in self._logs]

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: any(f"step {step}" in lines for lines in self.lines), 120)

    def ended(self, seconds: float, ranks: Sequence[int] = (0, 1)) -> list[tuple[int, str]]:
        """Return exit code and last line of `ranks`, which have to end within `seconds`."""
        wait_until(lambda: all(self.processes[r].poll() is not None for r in ranks), seconds)
        return [(self.processes[rank].returncode, self.lines[rank][-1]) for rank in ranks]


@pytest.fixture
def lab(cache: Path) -> Iterator[Lab]:
    with Lab(2, rate="100mbit") as lab:
        yield lab
    assert processes_of(cache) == []


@pytest.mark.several_cores
@pytest.mark.parametrize(("per_host", "sent"), [(2, signal.SIGKILL), (1, signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_hangs_is_named(
    lab: Lab, tmp_path: Path, per_host: int, sent: signal.Signals
) -> None:
    training, last = Training(lab, tmp_path, per_host, steps=10_000), 2 * per_host - 1
    training.wait_for_step(5)
    environments = {p: Path(f"/proc/{p}/environ").read_bytes() for p in lab.processes(1)}
    own = f"RANK={last}".encode()
    os.kill(next(p for p, text in environments.items() if own in text.split(b"\0")), sent)
    for code, line in training.ended(NOTICED_SECONDS, range(last)):
        assert (code, line[:7]) == (1, "error: "), training.lines
        assert f"rank {last} gives no sign of life" in line
    end_supervised(training.processes[last])


@pytest.mark.thorough
def test_a_link_that_is_cut_for_good_ends_the_ranks_on_both_sides(lab: Lab, tmp_path: Path) -> None:
    training = Training(lab, tmp_path, per_host=1, steps=10_000)
    training.wait_for_step(5)
    lab.cut(1)
    ended = training.ended(NOTICED_SECONDS)
    assert [code for code, _ in ended] == [1, 1], training.lines
    assert "rank 1 gives no sign of life: it has ended, hangs, or cannot be reached" in ended[0][1]
    assert "the store of the run does not answer: rank 0, " in ended[1][1]


@pytest.mark.thorough
def test_a_link_that_is_cut_for_5_seconds_changes_nothing(lab: Lab, tmp_path: Path) -> None:
    undisturbed = Training(lab, tmp_path, per_host=1, steps=60).ended(60)
    assert undisturbed[0] == undisturbed[1]
    assert undisturbed[0][0] == 0 and undisturbed[0][1].startswith("weights ")
    training = Training(lab, tmp_path, per_host=1, steps=60)
    training.wait_for_step(5)
    lab.cut(1)
    time.sleep(5)
    assert all("step 30" not in lines for lines in training.lines)  # it does wait
    lab.mend(1)
    training.wait_for_step(30)
    assert training.ended(120) == undisturbed
