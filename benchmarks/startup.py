"""Time to first step of each task: two runs in a row, with the accelerated backend at O1.

    python3 benchmarks/startup.py --out benchmarks/results/MACHINE/startup.json
        [--only resnet50 …] [--steps 30] [--background-seconds 60]

Both runs are the same, at the sizes for a few cores. The second run finds in the cache what the
first has compiled; `first` is cold only where the cache was. Start-up counts from the command,
`launch_single_task.py`, which has nothing imported, to the end of the warm-up. The steady-state
time of the warm-up's steps is subtracted. The second run may take at most 10 seconds.

With `--background-seconds` three more runs each train for so long from the launch on, with empty
caches: the baseline uncompiled, the backend compiled, and with `compile_in_background`. Of each,
`background` has the samples trained, the seconds to the first step, the longest step after it, and
from which step on the run stays ahead of the uncompiled one (absent: from none of these).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, measured_before, write_result
from task_option import add_out_of_tasks, add_task_option

from gallery_lib import stats, tasks
from gallery_lib.config import TrainConfig, command_line
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.processes import end_supervised, start_supervised
from gallery_lib.train.results import read_results
from gallery_lib.train.run_log import STEPS_FILE, each_step_seconds

_MOST_SECONDS = 10.0
_MOST_STEPS = 1_000_000
_LOOK_SECONDS = 0.05
_COMMAND = Path(__file__).resolve().parent.parent / "launch_single_task.py"


def _config(name: str, folder: str, steps: int, **options: Any) -> TrainConfig:
    """Return the options of a run in `folder`, at the sizes for a few cores."""
    config = TrainConfig(
        model=name,
        amp_level="O1",
        max_steps=steps,
        evaluate=False,
        run_dir=str(Path(folder) / "run"),
        **options,
    )
    return tasks.with_sizes(config, "quick")


def run(name: str, steps: int) -> dict[str, Any]:
    """Run a task, and return its start-up and throughput."""
    with TemporaryDirectory() as folder:
        config = _config(name, folder, steps, compiler_opt=True)
        command = [sys.executable, str(_COMMAND), *command_line.words_of(config)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results = read_results(Path(config.run_dir or ""))
    return {
        "startup_seconds": results.startup_seconds,
        "samples_per_second": results.samples_per_second,
        "steps": results.steps,
    }


def first_seconds(name: str, seconds: float) -> dict[str, dict[str, float]]:
    """Return what the first `seconds` after the launch bring, with empty caches, by kind of run."""
    kinds: dict[str, dict[str, Any]] = {
        "eager": {},
        "compiled": {"compiler_opt": True},
        "background": {"compiler_opt": True, "compile_in_background": True},
    }
    ends: dict[str, list[float]] = {}
    rows: dict[str, dict[str, float]] = {}
    for kind, options in kinds.items():
        config = _config(name, "", _MOST_STEPS, log_interval=1, **options)
        ends[kind] = of_kind = _train_for(config, seconds)
        steps = [later - earlier for earlier, later in pairwise(of_kind)]
        rows[kind] = {"samples": float(len(of_kind) * (config.batch_size or 0))}
        if of_kind:
            rows[kind]["first_step_seconds"] = of_kind[0]
        if steps:
            rows[kind]["longest_step_seconds"] = max(steps)
            rows[kind]["last_steps_seconds"] = stats.percentiles(steps[-20:])["p50"]
        step = ahead_from(of_kind, ends["eager"])
        if kind != "eager" and step is not None:
            rows[kind]["ahead_from_step"] = float(step)
    return rows


def ahead_from(ours: list[float], others: list[float]) -> int | None:
    """Return the step from which on ours end no later than the others', or None.

    Both are the seconds at which each step ended. Steps that only one of them has count for it.
    """
    behind = [n for n, (one, other) in enumerate(zip(ours, others, strict=False), 1) if one > other]
    step = behind[-1] + 1 if behind else 1
    return step if step <= len(ours) else None


def _train_for(config: TrainConfig, seconds: float) -> list[float]:
    """Train for `seconds` from the launch on, then end the run; return when each step ended."""
    with TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = dataclasses.replace(config, run_dir=str(run_dir))
        began, first = time.monotonic(), 0.0
        process = start_supervised(
            [sys.executable, str(_COMMAND), *command_line.words_of(config)],
            {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")},
            stdout=subprocess.DEVNULL,
        )
        while (passed := time.monotonic() - began) < seconds:
            if process.poll() is not None:
                raise RunFailed(f"{config.model} has ended before its time: {process.returncode}")
            log = run_dir / STEPS_FILE
            if not first and log.is_file() and log.stat().st_size:
                first = passed
            time.sleep(_LOOK_SECONDS)
        end_supervised(process)
        durations: list[float] = []
        with contextlib.suppress(InputError):  # none yet
            durations = each_step_seconds(run_dir)
    return [first + after for after in accumulate(durations[1:], initial=0.0)] if durations else []


def main() -> int:
    """Run all tasks; return 1 when a second run takes longer to start than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_task_option(parser, "run", tasks.names())
    parser.add_argument(
        "--steps", type=int, default=30, help="steps of each run, warm-up included (default: 30)"
    )
    parser.add_argument(
        "--background-seconds",
        type=float,
        default=0.0,
        help="also train for so long in three ways, with empty caches (default: not)",
    )
    add_out_of_tasks(parser)
    arguments = parser.parse_args()
    if not 0 <= arguments.background_seconds <= 3600:
        raise InputError("--background-seconds must be 0 to 3600.")
    rows = measured_before(arguments.out, "tasks") or {}
    for name in arguments.only:
        row = rows[name] = {which: run(name, arguments.steps) for which in ("first", "second")}
        first, second = (row[which]["startup_seconds"]["total"] for which in ("first", "second"))
        rates = row["second"]["samples_per_second"]
        print(f"{name:26} first {first:5.1f} s, second {second:5.1f} s to start; ", end="")
        print(
            f"{rates['global']:.1f} samples/s in steady state, "
            f"{rates['whole_run']:.1f} in all {arguments.steps} steps",
            flush=True,
        )
        if arguments.background_seconds:
            row["background"] = first_seconds(name, arguments.background_seconds)
            for kind, values in row["background"].items():
                print(f"{'':26} {kind:10}", json.dumps(values), flush=True)
        if arguments.out:
            write_result(
                arguments.out,
                {
                    **conditions(),
                    "most_seconds": _MOST_SECONDS,
                    "tasks": dict(sorted(rows.items())),
                },
            )
    return int(
        any(row["second"]["startup_seconds"]["total"] > _MOST_SECONDS for row in rows.values())
    )


if __name__ == "__main__":
    sys.exit(exit_code(main))
