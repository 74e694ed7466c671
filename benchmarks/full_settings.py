"""Run a few steps of every task at its full size, at O1 with the accelerated backend.

    python3 benchmarks/full_settings.py --out benchmarks/results/MACHINE/full-size.json
        [--only resnet50 …] [--steps 3]

The question is whether the `full` settings run on this machine. A task that does not fit into
memory says so before it starts, and its message is the outcome. The time of a step is written down
as it is: a few steps, not a measurement of speed.
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

from figures_file import conditions, exit_code, measured_before, write_result
from task_option import add_out_of_tasks, add_task_option

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.errors import GalleryError
from gallery_lib.launcher.job import launch


def run_task(name: str, steps: int, *, compiler_opt: bool) -> dict[str, Any]:
    """Run `steps` steps of the task `name`, and return the outcome with its figures."""
    with TemporaryDirectory() as folder:
        config = TrainConfig(
            model=name,
            amp_level="O1",
            compiler_opt=compiler_opt,
            max_steps=steps,
            warmup_steps=1,
            log_interval=1,
            evaluate=False,
            run_dir=str(Path(folder) / "run"),
        )
        config = tasks.with_sizes(config, "full")
        sizes = {option: size for option in tasks.SIZES if (size := getattr(config, option))}
        try:
            results = launch(config, show_log=False, progress=False)
        except GalleryError as error:
            return {"sizes": sizes, "outcome": str(error).splitlines()[0]}
    assert results is not None
    return {
        "sizes": sizes,
        "outcome": f"{results.steps} steps",
        "loss": [loss for _, loss in results.loss["curve"]],
        "step_seconds": results.step_seconds["p50"],
        "startup_seconds": results.startup_seconds["total"],
        "peak_memory_bytes": results.peak_memory_bytes["host"],
    }


def main() -> int:
    """Run all tasks, and print and write each outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_task_option(parser, "run", tasks.names())
    parser.add_argument(
        "--steps",
        type=int,
        default=3,
        help="steps of each task; a few show whether it runs (default: 3)",
    )
    parser.add_argument(
        "--eager", action="store_true", help="run the baseline instead of the accelerated backend"
    )
    add_out_of_tasks(parser)
    arguments = parser.parse_args()
    rows = measured_before(arguments.out, "tasks") or {}
    for name in arguments.only:
        rows[name] = run_task(name, arguments.steps, compiler_opt=not arguments.eager)
        step = (
            f"  {rows[name]['step_seconds']:.1f} s a step" if "step_seconds" in rows[name] else ""
        )
        print(f"{name:26} {rows[name]['outcome']}{step}", flush=True)
        if arguments.out:
            write_result(arguments.out, {**conditions(), "tasks": dict(sorted(rows.items()))})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
