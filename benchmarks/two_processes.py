"""Compare compiler-opt with eager on several processes of this machine, task by task, with parity.

    python3 benchmarks/two_processes.py --out benchmarks/results/MACHINE/two-processes.json
        [--only resnet50 …] [--nproc_per_node 2] [--runs 1]

On a CPU the processes share the cores: two processes on two cores have a thread each. Both sides
train with DistributedDataParallel at the same precision, O1, on inputs of the size `quick`, in
turns. It takes about a minute for each task.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import dataclasses

from figures_file import (
    comparison_figures,
    conditions,
    exit_code,
    measured_before,
    write_result,
)
from task_option import add_out_of_tasks, add_task_option

from gallery_lib import tasks
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.report import tables
from gallery_lib.system import hardware


def compare_task(name: str, processes: int, options: CompareConfig) -> dict[str, Any]:
    """Run one comparison, print its tables, and return its figures, or why there are none."""
    base = tasks.with_sizes(TrainConfig(model=name, amp_level="O1", evaluate=False), "quick")
    sizes = {option: size for option in tasks.SIZES if (size := getattr(base, option))}
    variants = {"baseline": base, "compiler-opt": dataclasses.replace(base, compiler_opt=True)}
    launch = LaunchConfig(nproc_per_node=processes)
    with TemporaryDirectory() as folder:
        try:
            outcome = compare(variants, launch, options, folder=Path(folder))
        except GalleryError as error:
            return {"sizes": sizes, "reason": str(error).splitlines()[0]}
        print(tables.comparison_text(outcome), flush=True)
    return {"sizes": sizes, "reason": None, **comparison_figures(outcome)}


def main() -> int:
    """Compare all tasks, and print and write each outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_task_option(parser, "compare", tasks.names())
    parser.add_argument(
        "--nproc_per_node", type=int, default=2, help="processes of each side (default: 2)"
    )
    parser.add_argument("--runs", type=int, default=1, help="comparisons of each task (default: 1)")
    add_out_of_tasks(parser)
    arguments = parser.parse_args()
    if arguments.runs < 1:
        raise InputError(f"runs is {arguments.runs}. Give a number from 1 on.", parameter="runs")
    if not 1 <= arguments.nproc_per_node <= hardware.cores():
        raise InputError(
            f"nproc_per_node is {arguments.nproc_per_node}, and this machine has "
            f"{hardware.cores()} cores. Give a number from 1 to {hardware.cores()}.",
            parameter="nproc_per_node",
        )
    before = measured_before(arguments.out, "processes")
    if before not in (None, arguments.nproc_per_node):
        raise InputError(
            f"{arguments.out} has figures of {before} process(es), and nproc_per_node is "
            f"{arguments.nproc_per_node}. Name another file with --out.",
            parameter="nproc_per_node",
        )
    options = CompareConfig()
    rows = measured_before(arguments.out, "tasks") or {}
    for name in arguments.only:
        rows[name] = [
            compare_task(name, arguments.nproc_per_node, options) for _ in range(arguments.runs)
        ]
        if arguments.out:
            measured = {
                "processes": arguments.nproc_per_node,
                "tasks": dict(sorted(rows.items())),
            }
            write_result(arguments.out, {**conditions(), **measured})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
