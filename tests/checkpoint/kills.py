"""Kill a training at random moments, go on with it each time, and compare it with one left alone.

    python -m tests.checkpoint.kills --moments 50 --processes 1 2

A killed run is resumed and killed again, until it has been killed as often as was asked for. In the
end its losses and metrics must be those of an undisturbed run, bit for bit. Checkpoints follow one
another so closely that many a kill comes in the middle of one.
"""

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import bucket_task
from worker_processes import wait_until, workers_of

from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.errors import RunFailed
from gallery_lib.launcher.job import Job, start
from gallery_lib.train.results import Results, last_step

LONGEST_LIFE_SECONDS = 1.5


@dataclass
class Outcome:
    """A run that was killed, beside one that was not."""

    undisturbed: Results
    killed: Results
    in_a_write: int
    """Kills that left a checkpoint unfinished."""


def started(config: TrainConfig, processes: int) -> Job:
    return start(config, LaunchConfig(nproc_per_node=processes))


def results_of(job: Job) -> Results:
    """Return what a run has measured at its end; leave none of its processes."""
    try:
        results = job.result()
    finally:
        job.stop()
    assert results is not None
    return results


def _run(run_dir: Path, processes: int, values: dict[str, Any]) -> Job:
    return started(bucket_task.config("SLOW", run_dir=str(run_dir), **values), processes)


def _kill_later(job: Job, seconds: float, draw: random.Random) -> None:
    """Kill one rank that long after the first step of this life, and wait for the end."""
    before = last_step(job.run_dir)
    wait_until(lambda: not job.running() or last_step(job.run_dir) != before, 120)
    time.sleep(seconds)
    workers = workers_of(psutil.Process())
    assert job.running() and workers, "the run came to its end before it was killed"
    with contextlib.suppress(psutil.NoSuchProcess):
        draw.choice(workers).kill()
    with pytest.raises(RunFailed):
        job.result()
    job.stop()


def kill_and_go_on(folder: Path, moments: int, processes: int, seed: int, **values: Any) -> Outcome:
    """Return what has become of a run that was killed at `moments` random moments."""
    draw = random.Random(seed)
    values = {"max_steps": 60 + 25 * moments, **values}
    undisturbed = results_of(_run(folder / "undisturbed", processes, values))
    run_dir, in_a_write = folder / "killed", 0
    values |= {"checkpoint_every": str(draw.choice([1, 2, 3])), "resume": "auto"}
    for _ in range(moments):
        job = _run(run_dir, processes, values)
        _kill_later(job, draw.uniform(0.0, LONGEST_LIFE_SECONDS), draw)
        in_a_write += bool(list((run_dir / "checkpoints").glob(".*.tmp")))
    return Outcome(undisturbed, results_of(_run(run_dir, processes, values)), in_a_write)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoint.kills", description=__doc__)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--compiler-opt", action="store_true")
    options = parser.parse_args()
    more, wrong = {"compiler_opt": options.compiler_opt}, False
    for processes in options.processes:
        folder = Path(tempfile.mkdtemp(prefix="kills-"))
        outcome = kill_and_go_on(folder, options.moments, processes, options.seed, **more)
        same = outcome.killed.loss == outcome.undisturbed.loss
        wrong = wrong or not same
        print(
            f"seed {options.seed}, {processes} process(es): {options.moments} kills, "
            f"{outcome.in_a_write} in a write: "
            f"{'the same losses, bit for bit' if same else f'OTHER LOSSES, see {folder}'}",
            flush=True,
        )
        if same:
            shutil.rmtree(folder)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
