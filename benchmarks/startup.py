"""Time to first step of each task: two runs in a row, with the accelerated backend at O1.

    python3 benchmarks/startup.py --out benchmarks/results/MACHINE/startup.json
        [--only resnet50 …] [--steps 30]

Both runs are the same, at the sizes for a few cores. The second run finds in the cache what the
first has compiled; `first` is cold only where the cache was. Start-up counts from the command,
`launch_single_task.py`, which has nothing imported, to the end of the warm-up. The steady-state
time of the warm-up's steps is subtracted. The second run may take at most 10 seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, measured_before, out_file, write_result
from task_option import add_task_option

from gallery_lib import tasks
from gallery_lib.config import TrainConfig, command_line
from gallery_lib.train.results import read_results

_MOST_SECONDS = 10.0
_COMMAND = Path(__file__).resolve().parent.parent / "launch_single_task.py"


def run(name: str, steps: int) -> dict[str, Any]:
    """Run a task, and return its start-up and throughput."""
    with TemporaryDirectory() as folder:
        config = TrainConfig(
            model=name,
            amp_level="O1",
            compiler_opt=True,
            max_steps=steps,
            evaluate=False,
            run_dir=str(Path(folder) / "run"),
        )
        words = command_line.words_of(tasks.with_sizes(config, "quick"))
        subprocess.run(
            [sys.executable, str(_COMMAND), *words], check=True, stdout=subprocess.DEVNULL
        )
        results = read_results(Path(config.run_dir or ""))
    return {
        "startup_seconds": results.startup_seconds,
        "samples_per_second": results.samples_per_second,
        "steps": results.steps,
    }


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
        "--out",
        type=out_file,
        help="JSON file for the figures; it keeps what it has of other tasks",
    )
    arguments = parser.parse_args()
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
