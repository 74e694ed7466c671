"""Other load on the machine is noticed, from made-up counters and from a process that computes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_task

from gallery_lib.launcher.job import launch
from gallery_lib.report.tables import results_text
from gallery_lib.system import machine_load
from gallery_lib.system.machine_load import (
    WAITED,
    Look,
    MachineLoad,
    Others,
    Watch,
    others_between,
    waited_between,
)
from gallery_lib.train.results import read_results


def seen(at: float, **others: float) -> Look:
    processes = {
        (number, 1.0): (name, spent) for number, (name, spent) in enumerate(others.items(), 1)
    }
    return Look(at, 0.0, 100.0 * at, processes)


def test_the_program_that_took_most_is_named_and_all_are_added_up() -> None:
    """A build is many short processes; one that ended keeps what was seen of it."""
    looks = [seen(0.0, editor=5.0, compiler=100.0), seen(10.0, editor=6.0, compiler=108.0)]
    most = Others(pytest.approx(0.9), "compiler", pytest.approx(0.8))
    assert others_between(looks) == most
    build = {(number, 5.0): ("cc1plus", 2.0) for number in range(4)} | {(9, 1.0): ("editor", 3.0)}
    begun = dataclasses.replace(seen(10.0), others=build)
    most = Others(pytest.approx(1.1), "cc1plus", pytest.approx(0.8))
    assert others_between([seen(0.0), begun]) == most
    looks = [seen(0.0), seen(5.0, short=2.0), seen(10.0)]
    most = Others(pytest.approx(0.2), "short", pytest.approx(0.2))
    assert others_between(looks) == most


def test_without_two_looks_nothing_is_claimed() -> None:
    assert others_between([seen(0.0)]) is None
    assert others_between([seen(1.0), seen(1.0)]) is None


def test_waiting_is_a_part_of_the_time_with_work_of_threads_that_were_there_all_the_time() -> None:
    looks = [
        dataclasses.replace(seen(at), threads=threads)
        for at, threads in enumerate(
            [{1: (1.0, 0.0), 2: (5.0, 1.0)}, {1: (2.0, 2.0), 3: (9.0, 9.0)}, {1: (4.0, 3.0)}]
        )
    ]
    assert waited_between(looks) == pytest.approx(3.0 / 6.0)
    assert waited_between([seen(0.0), seen(1.0)]) is None
    load = MachineLoad(2, None, None, waited=0.5)
    assert load.sentence() == (
        "The machine was busy: threads with work to do waited for a core 50% of the time; "
        "fewer --workers or --threads leave a core to each."
    )
    others = dataclasses.replace(load, turns=Others(1.0, "make", 1.0))
    assert others.sentence().endswith("so repeat it when it is quiet.")


@pytest.mark.slow
def test_a_training_beside_busy_neighbours_says_that_it_waited(tmp_path: Path) -> None:
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        run = tiny_task.config(run_dir=str(tmp_path / "run"), max_steps=400, log_interval=100)
        results = launch(run, show_log=False, progress=False)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert results is not None and results.load is not None
    assert results.load.waited > WAITED
    said = results_text(results).splitlines()[-1]
    assert said.startswith("The machine was busy: threads with work to do waited for a core ")
    assert "other processes took" in said and "most of all `python" in said
    assert results_text(read_results(tmp_path / "run")) == results_text(results)


def test_a_process_of_others_is_told_from_those_that_this_one_has_started() -> None:
    """The grandchild's parent has ended, so that it belongs to nobody here."""
    # With these options nobody waits for the end of the process.
    silent = "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    start = f"import subprocess\nprint(subprocess.Popen(['sleep', '60'], {silent}).pid)"
    child = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(60)"])
    stranger = int(
        subprocess.run(
            [sys.executable, "-c", start], capture_output=True, text=True, check=True
        ).stdout
    )
    try:
        others = {number: name for (number, _), (name, _) in machine_load.look().others.items()}
    finally:
        child.kill()
        child.wait()
        os.kill(stranger, signal.SIGKILL)
    assert others[stranger] == "sleep"
    assert not {child.pid, os.getpid()} & set(others)


def test_a_watch_tells_what_it_saw_between_the_pauses() -> None:
    watch = Watch()
    watch.at_pause()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass  # this process's own time, which is not that of others
    watch.at_pause()
    load = watch.seen()
    assert load.turns is not None and load.turns.cores <= os.cpu_count()
    assert all(isinstance(reason, str) for reason in load.reasons())
