"""Measure all that `gallery bench` can on this machine, and publish the figures.

    python3 benchmarks/bench.py MACHINE                   all tasks, small inputs
    python3 benchmarks/bench.py MACHINE --profile large   larger images and longer sequences
    python3 benchmarks/bench.py MACHINE --run 2           a second run beside the first
    python3 benchmarks/bench.py MACHINE --only resnet50   some tasks only
    python3 benchmarks/bench.py MACHINE --resume          continue after an interruption
    python3 benchmarks/bench.py MACHINE --variants best,ours   pass on any option of `gallery bench`
    python3 benchmarks/bench.py MACHINE --only hf_Bert hf_Bart --profile large --batch_size 2
        --sequence_length 512 --name long-inputs           inputs that are neither small nor large

Figures of small inputs go to results/MACHINE/bench-small.json and .png, and of a second run to
bench-small-2.json. Figures of large inputs go to bench-large.json. The pages of `results/` are then
made anew (`pages.py`).

On a GPU the tasks have their full sizes (ResNet-50: batch 128), which are published as large
inputs. ResNet-50 is then trained at the largest batch that fits, found by doubling, on images that
are repeated as often as it takes: results/MACHINE/resnet50-largest.json. That part has not been run
on a GPU. It takes hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import pages
from figures_file import conditions, results_file, write_result
from task_option import add_task_option

from gallery_lib.cli.main import main as gallery
from gallery_lib.config import BenchConfig, TrainConfig
from gallery_lib.config.options import options_of
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import OutOfMemory
from gallery_lib.launcher.job import launch
from gallery_lib.system import hardware, paths
from gallery_lib.train.results import Results


def train_resnet50(batch_size: int, steps: int, folder: Path) -> Results:
    """Return the results of ResNet-50 at 224² with the accelerated backend at O1.

    Raises:
        OutOfMemory: when the batch does not fit.
        GalleryError: when the run fails for another reason.
    """
    config = TrainConfig(
        model=f"{Path(__file__).with_name('repeated_images.py')}:TASK",
        compiler_opt=True,
        amp_level="O1",
        batch_size=batch_size,
        image_size=224,
        max_steps=steps,
        warmup_steps=steps // 3,
        evaluate=False,
        workers=hardware.cores(),
        run_dir=str(folder / f"{batch_size}-{steps}"),
    )
    results = launch(config, show_log=False, progress=False)
    assert results is not None
    return results


def largest_batch(folder: Path) -> dict[str, Any]:
    """Train ResNet-50 at the largest of 128, 256, 512, … that fits, and return the figures.

    The figures include the message of the next batch size, for which memory did not suffice.

    Raises:
        GalleryError: when a run fails for another reason than memory.
    """
    batch_size, reason = 128, ""
    while not reason:
        try:
            train_resnet50(2 * batch_size, 3, folder)
            batch_size *= 2
        except OutOfMemory as error:
            reason = str(error).splitlines()[0]
    results = train_resnet50(batch_size, 60, folder)
    return {
        "batch_size": batch_size,
        "twice_as_many": reason,
        "samples_per_second": results.samples_per_second,
        "step_seconds": results.step_seconds,
        "peak_memory_bytes": results.peak_memory_bytes,
        "startup_seconds": results.startup_seconds,
    }


def publish(folder: Path, machine: str, name: str) -> None:
    """Copy the figures of the bench in `folder` to those of the machine, as `name`."""
    results_file(machine, f"{name}.json").parent.mkdir(parents=True, exist_ok=True)
    for ending in ("json", "png"):
        shutil.copy(folder / f"bench.{ending}", results_file(machine, f"{name}.{ending}"))


def main() -> int:
    """Measure and publish the figures, and return the exit code of `gallery bench`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "machine", help="name of the machine: the folder of its figures in benchmarks/results/"
    )
    add_task_option(parser, "measure", [])
    parser.add_argument(
        "--profile",
        choices=options_of(BenchConfig)["profile"].choices,
        default="auto",
        help="sizes of the tasks; large inputs take several times as long (default: auto)",
    )
    parser.add_argument(
        "--run",
        type=int,
        help="number of this run, where several of one size are published; its files end with it",
    )
    parser.add_argument(
        "--name",
        choices=["long-inputs"],
        help="name of the published files, where inputs are neither small nor large",
    )
    arguments, passed_on = parser.parse_known_args()
    gpu = hardware.gpu_count() > 0
    large = arguments.profile in ("large", "full") or (gpu and arguments.profile == "auto")
    name = arguments.name or ("bench-large" if large else "bench-small")
    name += f"-{arguments.run}" if arguments.run else ""
    folder = paths.runs_dir() / f"{arguments.machine}-{name}"
    code = gallery(
        [
            "bench",
            *arguments.only,
            f"--profile={arguments.profile}",
            *passed_on,
            f"--out={os.path.relpath(folder)}",
        ]
    )
    if not (folder / "bench.json").exists():
        return code
    publish(folder, arguments.machine, name)
    full = arguments.profile in ("auto", "full")
    if gpu and full and (not arguments.only or "resnet50" in arguments.only):
        with TemporaryDirectory() as runs:
            figures = {**conditions(), **largest_batch(Path(runs))}
            write_result(results_file(arguments.machine, "resnet50-largest.json"), figures)
    pages.write()
    return code


if __name__ == "__main__":
    sys.exit(
        exit_code_of(
            main,
            error_prefix="error",
            interrupted="interrupted. The same command with --resume continues.",
        )
    )
