"""Measure how near the steps of tasks come to this machine's limits: `gallery doctor --roofline`.

    python3 benchmarks/rooflines.py --out benchmarks/results/MACHINE/rooflines.json
        [--only resnet50 …] [--rounds 8]

Each task trains with compiler-opt at O1 on inputs of its own size, without the loader. It takes one
to three minutes for each task, on a CPU.
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

from figures_file import conditions, exit_code, measured_before, write_result
from task_option import add_out_of_tasks, add_task_option

from gallery_lib import tasks
from gallery_lib.config import RooflineConfig, TrainConfig, options
from gallery_lib.errors import GalleryError
from gallery_lib.measure.profile.roofline.measure import check_machine, measure
from gallery_lib.measure.profile.roofline.result import Roofline
from gallery_lib.report.doctor.roofline_text import summary


def figures(roofline: Roofline) -> dict[str, Any]:
    """Return what is published of a roofline: its limits, steps and groups."""
    values = dataclasses.asdict(roofline)
    names = ("limits", "step_seconds", "profiled_seconds", "others", "groups")
    return {name: values[name] for name in names}


def measured(config: TrainConfig, rounds: int) -> dict[str, Any]:
    """Measure one roofline, print its summary, and return its figures, or why there are none."""
    sizes = {option: size for option in tasks.SIZES if (size := getattr(config, option))}
    with TemporaryDirectory() as folder:
        asked = RooflineConfig(config.model, rounds, str(Path(folder) / "roofline"))
        try:
            _, roofline = measure(config, asked)
        except GalleryError as error:
            return {"sizes": sizes, "reason": str(error).splitlines()[0]}
    print(f"{config.model}: {summary(roofline)}", flush=True)
    return {"sizes": sizes, "reason": None, **figures(roofline)}


def main() -> int:
    """Measure the tasks one after another, and write each one's figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_task_option(parser, "measure", tasks.names())
    parser.add_argument("--rounds", type=int, default=8, help="as of gallery doctor (default: 8)")
    add_out_of_tasks(parser)
    arguments = parser.parse_args()
    options.checked(RooflineConfig(rounds=arguments.rounds))
    check_machine()
    rows = measured_before(arguments.out, "tasks") or {}
    for name in arguments.only:
        config = tasks.with_sizes(TrainConfig(model=name, amp_level="O1", compiler_opt=True))
        rows[name] = measured(config, arguments.rounds)
        if arguments.out:
            write_result(arguments.out, {**conditions(), "tasks": dict(sorted(rows.items()))})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
