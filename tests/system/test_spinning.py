"""Threads that sleep while they wait, beside other work: when, that it works, and what stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gallery_lib.system import spinning
from gallery_lib.system.processes import search_path


def test_a_busy_machine_is_seen_at_once_and_a_quiet_one_is_tried_less_often_each_time() -> None:
    choice = spinning.Choice()
    assert not choice.look(busy=False) and choice.look(busy=True)
    tries: list[int] = []
    for _ in range(3):  # the neighbour only seems to have gone
        quiet = 1
        while choice.look(busy=False):
            quiet += 1
        tries.append(quiet)
        assert choice.look(busy=True)
    assert tries[0] < tries[1] < tries[2] <= 60
    while choice.look(busy=False):
        pass
    assert not any(choice.look(busy=False) for _ in range(100))


def test_a_user_s_own_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert spinning.watch() == "wait as OMP_WAIT_POLICY says"
    assert not spinning.asleep()


TRAIN = """
import json, os, sys, time
os.sched_setaffinity(0, set(json.loads(sys.argv[1])))
import torch
from torch import nn
from gallery_lib.system import spinning

torch.set_num_threads(2)

def spun():
    "CPU seconds of threads that wait for each other, and of what they wait for."
    x, began = torch.randn(1 << 18), time.process_time()
    for _ in range(40):
        x * 2
        time.sleep(0.01)
    return time.process_time() - began

def bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
    model(torch.randn(16, 3, 32, 32)).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]

found = {"spinning": spun()}
before = bits()
found["note"] = spinning.watch()
end = time.monotonic() + 60
while not spinning.asleep() and time.monotonic() < end:
    bits()
found["asleep"] = spinning.asleep()
found["sleeping"] = spun()
found["same"] = all(map(torch.equal, before, bits()))
for threads in (1, 2):
    torch.set_num_threads(threads)
found["after set_num_threads"] = spun()
child = os.fork()
if not child:
    torch.set_num_threads(1)
    os._exit(not (torch.ones(9).sum() == 9 and not spinning.asleep()))
found["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
spinning.stop()
found["stopped"] = spun()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is of Linux wheels; run it there")
def test_threads_sleep_beside_other_work_and_compute_the_same_bits() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    beside = f"import os; os.sched_setaffinity(0, {cores})\nwhile True: pass"
    neighbours = [subprocess.Popen([sys.executable, "-c", beside]) for _ in range(4)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, json.dumps(cores)],
            env={"PYTHONPATH": search_path(), "OMP_NUM_THREADS": "2"},
            **{"capture_output": True, "text": True, "check": True},
        )
    finally:
        for one in neighbours:
            one.kill()
            one.wait()
    found = json.loads(done.stdout)
    assert found["note"] == "sleep while they wait, when other work wants their cores"
    assert found["asleep"] and found["same"] and found["child"] == 0
    assert done.stderr.count("Threads of this process wait for cores") == 1
    for asleep in ("sleeping", "after set_num_threads"):
        assert found[asleep] < found["spinning"] / 3, found
    assert found["stopped"] > found["spinning"] / 3, found
