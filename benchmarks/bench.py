"""Everything that `gallery bench` can measure on this machine, in one command, with the figures put where they are published.

    python benchmarks/bench.py MACHINE                   all tasks in all variants: results/bench-MACHINE.json, .md and .png
    python benchmarks/bench.py MACHINE --only resnet50   some tasks only
    python benchmarks/bench.py MACHINE --resume          go on after an interruption

On a GPU the tasks have their full sizes (ResNet-50: batch 128), and ResNet-50 is then trained at the largest batch that fits,
found by doubling: results/resnet50-largest-MACHINE.json. That part has not been run on a GPU. It takes hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import conditions, write_result

from gallery_lib import hardware, paths, tasks
from gallery_lib.cli import main as gallery
from gallery_lib.command import exit_code_of
from gallery_lib.config import TrainConfig
from gallery_lib.errors import GalleryError
from gallery_lib.launcher import launch
from gallery_lib.results import Results

RESULTS = Path(__file__).resolve().parent / "results"


def trained(batch_size: int, steps: int, folder: Path) -> Results:
    """ResNet-50 at 224² with the accelerated backend at O1. Raises GalleryError when it does not fit."""
    config = TrainConfig(
        model="resnet50",
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
    """ResNet-50 at the largest of 128, 256, 512, … that fits, and what the next one said."""
    batch_size, reason = 128, ""
    while not reason:
        try:
            trained(2 * batch_size, 3, folder)
            batch_size *= 2
        except GalleryError as error:
            reason = str(error).splitlines()[0]
    results = trained(batch_size, 60, folder)
    return {
        "batch_size": batch_size,
        "twice_as_many": reason,
        "samples_per_second": results.samples_per_second,
        "step_seconds": results.step_seconds,
        "peak_memory_bytes": results.peak_memory_bytes,
        "startup_seconds": results.startup_seconds,
    }


def main() -> int:
    """Measure, and copy the figures; the exit code is that of `gallery bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="a name for the machine, for the files")
    parser.add_argument("--only", nargs="+", choices=tasks.names(), default=[], help="some tasks only")
    parser.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    arguments = parser.parse_args()
    folder = paths.runs_dir() / f"bench-{arguments.machine}"
    code = gallery(["bench", *arguments.only, f"--out={os.path.relpath(folder)}", *(["--resume"] if arguments.resume else [])])
    if not (folder / "bench.json").exists():
        return code
    RESULTS.mkdir(exist_ok=True)
    name = f"bench-{arguments.machine}"
    for ending in ("json", "png"):
        shutil.copy(folder / f"bench.{ending}", RESULTS / f"{name}.{ending}")
    (RESULTS / f"{name}.md").write_text((folder / "bench.md").read_text().replace("(bench.png)", f"({name}.png)"))
    if hardware.gpu_count() and (not arguments.only or "resnet50" in arguments.only):
        with TemporaryDirectory() as runs:
            write_result(RESULTS / f"resnet50-largest-{arguments.machine}.json", {**conditions(), **largest_batch(Path(runs))})
    return code


if __name__ == "__main__":
    sys.exit(exit_code_of(main, error_prefix="error", interrupted="interrupted; --resume goes on"))
