"""Other load on the machine is noticed, from made-up counters and from processes that compute."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_task

from gallery_lib.launcher.job import launch
from gallery_lib.report.tables import results_text
from gallery_lib.system import gpu, hardware
from gallery_lib.system.machine_load import OTHERS, Look, MachineLoad, Watch, load_between, look
from gallery_lib.train.results import read_results


def test_waiting_is_a_part_of_the_time_with_work_of_threads_that_were_there_all_the_time() -> None:
    before = Look(0.0, 1.0, 2.0, 1.0, {1: (1.0, 0.0), 2: (5.0, 1.0)})
    after = Look(0.5, 11.0, 7.0, 3.0, {1: (4.0, 3.0), 3: (9.0, 9.0)})
    assert load_between(before, after) == MachineLoad(*map(pytest.approx, (0.05, 0.5, 0.3)))
    assert load_between(before, before) == MachineLoad(None, None, None)
    pinned = load_between(before, dataclasses.replace(after, cores=0.5))  # to half of the cores
    assert pinned == MachineLoad(*map(pytest.approx, (0.05, 0.5, 0.6)))


@pytest.mark.parametrize(
    ("load", "begins", "reasons"),
    [
        (MachineLoad(0.0, 0.09, 0.9), "", 0),
        (MachineLoad(0.0, 0.11, 0.9), "The machine was busy", 1),
        (MachineLoad(0.0, 0.11), "The machine was busy", 1),  # a file that does not say
        (MachineLoad(0.0, 0.11, 0.01), "Threads waited for each other's cores 11%", 0),
        (MachineLoad(0.03, 0.11, 0.01), "The machine was busy: the hypervisor", 1),
        (MachineLoad(gpu_processes=2, stolen=0.0), "The machine was busy: 2 other process(es)", 1),
    ],
)
def test_threads_that_wait_for_each_other_alone_do_not_make_a_machine_busy(
    load: MachineLoad, begins: str, reasons: int
) -> None:
    assert load.sentence().startswith(begins) and bool(load.sentence()) == bool(begins)
    assert len(load.reasons()) == reasons
    assert ("fewer --workers or --threads" in load.sentence()) == bool(begins)


def test_processes_on_gpus_that_this_run_does_not_use_are_not_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two visible GPUs, and an NVML that tells who is on each."""

    on: list[list[int]] = []

    class Nvml:
        def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: int, count: Any, found: Any) -> int:
            for place, process in enumerate(on[gpu]):
                found[place][0] = process
            count._obj.value = len(on[gpu])
            return 0

    monkeypatch.setattr(gpu, "_nvml", Nvml)
    monkeypatch.setattr(gpu, "_device", int)
    cards = [SimpleNamespace(bus=0), SimpleNamespace(bus=1)]
    monkeypatch.setattr(hardware, "visible_gpus", lambda: cards)
    own, a, b = os.getpid(), 2**22 + 1, 2**22 + 2
    for on[:], others in (
        ([[own, a], [b]], 1),
        ([[own], [a, b]], 0),
        ([[own, a], [own, a, b]], 2),
        ([[a], [b]], None),
        ([[], []], None),
    ):
        assert gpu.other_processes(None) == others


@pytest.mark.skipif(
    os.nice(0) == 19, reason="there is no lower priority; runs where tests have one"
)
def test_a_process_that_gives_way_is_of_the_run_and_does_not_count_as_waiting() -> None:
    """A loader's processes, say, which are niced and share the cores of the steps."""
    computes = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    words, pipes = [sys.executable, "-c", computes], {"stdin": PIPE, "stdout": PIPE}
    watch, orphan, before = Watch(), Watch(1), look()
    watch.at_pause()
    orphan.at_pause()
    with Popen(words, **pipes) as beside, Popen(["nice", "-n", "5", *words], **pipes) as niced:
        assert beside.stdout.readline() and niced.stdout.readline()
        after, beside_niced = look(), look(niced.pid)
        watch.at_pause()
        orphan.at_pause()
        beside.kill()
        niced.kill()
    assert beside.pid in after.threads and niced.pid not in after.threads
    assert after.own - before.own > 0.35
    load = watch.seen()
    assert load.waited is not None and 0 <= load.waited < 1
    assert load.others is not None and orphan.seen().others is None
    # Beside the niced process the other one is a neighbour.
    neighbour = load_between(dataclasses.replace(before, own=0.0), beside_niced).others
    assert neighbour is not None and neighbour * (after.total - before.total) > 0.1


@pytest.mark.slow
def test_a_training_beside_busy_neighbours_says_that_it_waited(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "while True: pass"]
    neighbours = [Popen(words) for _ in range(2 * len(os.sched_getaffinity(0)))]
    try:
        run = tiny_task.config(run_dir=str(tmp_path / "run"), max_steps=400, log_interval=100)
        results = launch(run, show_log=False, progress=False)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert results is not None and results.load is not None
    assert results.load.others > OTHERS
    said = results_text(results).splitlines()[-1]
    assert said.startswith("The machine was busy: threads with work to do waited for a core ")
    assert results_text(read_results(tmp_path / "run")) == results_text(results)
