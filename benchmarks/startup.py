"""Time to first step of each task: two runs in a row, with the accelerated backend at O1.

    python3 benchmarks/startup.py --out benchmarks/results/MACHINE/startup.json

Both runs are the same, at the sizes for a few cores. The second run finds in the cache what the
first has compiled; `first` is cold only where the cache was. Start-up counts from the command,
`launch_single_task.py`, which has nothing imported, to the end of the warm-up. The steady-state
time of the warm-up's steps is subtracted. The second run may take at most 10 seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures_file

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.config.options import words_of
from gallery_lib.train.results import read_results

MOST_SECONDS = 10.0
COMMAND = figures_file.HERE.parent / "launch_single_task.py"


def run(name: str, steps: int) -> dict[str, Any]:
    """Run a task, and return its start-up and throughput."""
    with TemporaryDirectory() as folder:
        config = TrainConfig(
            model=name,
            amp_level="O1",
            compiler_opt=True,
            max_steps=steps,
            evaluate=False,
            run_dir=f"{folder}/run",
        )
        words = words_of(tasks.with_sizes(config, "quick"))
        subprocess.run(
            [sys.executable, str(COMMAND), *words], check=True, stdout=subprocess.DEVNULL
        )
        results = read_results(Path(folder) / "run")
    return {
        "startup_seconds": results.startup_seconds,
        "samples_per_second": results.samples_per_second,
    }


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of both runs of each task."""
    header = ["task", "first run starts in", "second run", "of which compiling"]
    table = [[*header, "samples/s, steady state", "whole run"]]
    for name, row in found.items():
        first, second = (row[which]["startup_seconds"] for which in ("first", "second"))
        rates = row["second"]["samples_per_second"]
        times = (first["total"], second["total"], second["compile"])
        rate_cells = (f"{rates[key]:.1f}" for key in ("global", "whole_run"))
        table.append([name, *(f"{value:.1f} s" for value in times), *rate_cells])
    return table


def main() -> int:
    """Run all tasks; return 1 when a second run takes longer to start than it may."""
    parser = figures_file.parser(__doc__, tasks="run")
    figures_file.add_numbers(parser, steps=(30, "steps of each run, warm-up included"))
    arguments = parser.parse_args()
    found = figures_file.earlier(arguments.out, "tasks") or {}
    for name in arguments.only:
        found[name] = {which: run(name, arguments.steps) for which in ("first", "second")}
        figures_file.show(rows_of({name: found[name]}))
        figures_file.write(arguments.out, {"tasks": found}, "How soon a run starts", rows_of(found))
    starts = (row["second"]["startup_seconds"]["total"] for row in found.values())
    return int(max(starts) > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
