"""Measure how far apart processes that run the same code are, and the part of page faults in it.

    python3 benchmarks/processes.py --out benchmarks/results/MACHINE/processes.json

One process after another trains the small network of planted.py, or ResNet-50 at 64² in O1,
eagerly. Some have glibc's allocator as it comes, others keep large blocks (memory/allocator.py).
The figures of each process are medians of page faults per step and of step time. The standard
deviation of step time over the processes stands beside them;
gallery_lib/measure/comparison/process_spread.py has it as constants. The processes do not take
turns, so it includes what the machine does between them. It takes about ten minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, out_file, write_result
from trust import RESNET50, SMALL

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.launcher.job import launch
from gallery_lib.memory import allocator

RUNS = {
    "small network": dataclasses.replace(SMALL, max_steps=120),
    "ResNet-50, 64², O1": dataclasses.replace(RESNET50, max_steps=30),
}


def run_process(run: TrainConfig, *, keeps: bool) -> dict[str, float]:
    """Run one process, and return the medians over its steps."""
    variables = allocator.allocator_variables() if keeps else {}
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ, variables):
        results = launch(
            dataclasses.replace(run, run_dir=str(Path(folder) / "run")),
            show_log=False,
            progress=False,
        )
    assert results is not None
    return {"page_faults": results.page_faults, "step_seconds": results.step_seconds["p50"]}


def main() -> int:
    """Run all processes, print and write the figures, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=8,
        help="processes of each of the four kinds; more make the deviation surer, and take longer "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    arguments = parser.parse_args()
    if arguments.processes < 2:
        raise InputError(
            f"--processes {arguments.processes} must be at least 2: "
            "one has nothing to differ from.",
            parameter="processes",
        )
    rows: list[dict[str, Any]] = []
    for name, run in RUNS.items():
        for keeps in (False, True):
            figures = [run_process(run, keeps=keeps) for _ in range(arguments.processes)]
            steps = [process["step_seconds"] for process in figures]
            deviation = statistics.stdev(steps) / statistics.mean(steps)
            rows.append(
                {
                    "run": name,
                    "keeps_large_blocks": keeps,
                    "relative_standard_deviation": deviation,
                    "processes": figures,
                }
            )
            print(
                f"{name}, {'large blocks kept' if keeps else 'as glibc comes'}: "
                f"standard deviation {deviation:.1%}"
            )
            for process in figures:
                print(
                    f"  {process['page_faults']:8,.0f} page faults a step  "
                    f"{1e3 * process['step_seconds']:7.1f} ms",
                    flush=True,
                )
            if arguments.out:
                write_result(arguments.out, {**conditions(), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
