"""`gallery lab run`: the same command on every host, its environment, and how it ends."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from cluster.conftest import (
    PLAIN,
    check_refused_in_one_line,
    gallery,
    processes_of,
    said,
    start_on_hosts,
)
from worker_processes import wait_until

from gallery_lib.system import hardware

pytestmark = pytest.mark.cluster
OTHERS = " The commands on the other hosts have been ended."

ALL_REDUCE = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.full((250_000,), float(dist.get_rank() + 1))
dist.all_reduce(total)
print("sum", total.unique().tolist(), "at", os.environ["MASTER_ADDR"], sys.argv[1], flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def lab() -> str:
    said("lab", "up", "--rate", "100mbit")
    return "lab"


def test_each_host_is_told_who_it_is_and_ends_when_another_fails(lab: str, cache: Path) -> None:
    """A process also knows the cores that its host has, half of this machine's each."""
    names = "$NODE_RANK/$NNODES $MASTER_ADDR:$MASTER_PORT $GLOO_SOCKET_IFNAME $TP_SOCKET_IFNAME"
    shown = said(*PLAIN, "sh", "-c", f"echo {names}; echo --x >&2")
    assert sorted(shown.splitlines()) == [
        "host0 | --x",
        "host0 | 0/2 10.77.0.1:29400 eth0 eth0",
        "host1 | --x",
        "host1 | 1/2 10.77.0.1:29400 eth0 eth0",
    ]
    code = "from gallery_lib.system import hardware; print(hardware.cores())"
    shown = said(*PLAIN, sys.executable, "-c", code)
    each = max(1, hardware.cores() // 2)
    assert sorted(shown.splitlines()) == [f"host0 | {each}", f"host1 | {each}"]
    began = time.monotonic()
    done = gallery(*PLAIN, "sh", "-c", "if [ $NODE_RANK = 1 ]; then exit 7; fi; sleep 100")
    assert done.returncode == 1
    assert done.stderr == f"error: host1 ended with exit code 7.{OTHERS}\n"
    assert time.monotonic() < began + 20
    assert len(processes_of(cache)) == 1  # the keeper


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_ends_everything_that_was_started(
    lab: str, cache: Path, sent: signal.Signals, code: int
) -> None:
    process = start_on_hosts("sleep 100 & setsid sleep 100")
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert errors == ("interrupted: every process of the run has been ended.\n" if code > 0 else "")
    wait_until(lambda: len(processes_of(cache)) == 1)
    # The lab is up, and there is no process in a host.
    assert said("lab", "status").count(" 0\n") == 2


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["lab", "run"], ["two dashes", "gallery lab run -- train.py --lr 0.1"]),
        (["lab", "up"], ["`lab`", "gallery lab down --name lab"]),
        (["lab", "run", "--name", "lba", "--", "x.py"], ["`lba`", "Did you mean `lab`"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    lab: str, cache: Path, words: list[str], values: list[str]
) -> None:
    check_refused_in_one_line(gallery(*words), *values)
    assert len(processes_of(cache)) == 1


@pytest.mark.slow
def test_torch_sums_over_the_hosts(lab: str, tmp_path: Path) -> None:
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    done = gallery("lab", "run", "--nproc_per_node", "1", "--", str(script), "--flag", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "sum" in line]
    assert sorted(lines) == [f"host{host} | sum [3.0] at 10.77.0.1 --flag" for host in range(2)]


REFUSES = """
import os, sys
if os.environ["RANK"] == "1":
    print("error: --size 0 is below 1", file=sys.stderr)
    sys.exit(2)
import time
time.sleep(100)
"""


@pytest.mark.slow
def test_a_script_that_refuses_its_input_ends_the_others_and_is_heard(
    lab: str, tmp_path: Path
) -> None:
    """And without torchrun's own report, which is a traceback of torchrun."""
    script = tmp_path / "refuses.py"
    script.write_text(REFUSES)
    done = gallery("lab", "run", "--nproc_per_node", "1", "--", str(script), timeout=300)
    assert done.returncode == 1
    assert done.stderr == f"error: host1 ended with exit code 2.{OTHERS}\n"
    # There is none of the other host's torchrun either, which a signal has ended.
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith("host1")]
    assert lines == ["host1 | error: --size 0 is below 1", "host1 | rank 1 ended with exit code 2"]
