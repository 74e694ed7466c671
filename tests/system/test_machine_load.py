"""Other load on the machine is noticed, from made-up counters and from processes that compute."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_task

from gallery_lib.launcher.job import launch
from gallery_lib.report.tables import results_text
from gallery_lib.system.machine_load import WAITED, Look, MachineLoad, Watch, load_between
from gallery_lib.train.results import read_results


def test_waiting_is_a_part_of_the_time_with_work_of_threads_that_were_there_all_the_time() -> None:
    before = Look(0.0, 1.0, {1: (1.0, 0.0), 2: (5.0, 1.0)})
    after = Look(0.5, 11.0, {1: (4.0, 3.0), 3: (9.0, 9.0)})
    assert load_between(before, after) == MachineLoad(pytest.approx(0.05), pytest.approx(0.5))
    assert load_between(before, before) == MachineLoad(None, None)


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
    assert results_text(read_results(tmp_path / "run")) == results_text(results)


def test_a_watch_tells_what_it_saw_between_the_pauses() -> None:
    watch = Watch()
    watch.at_pause()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    watch.at_pause()
    load = watch.seen()
    assert load.waited is not None and 0 <= load.waited < 1
