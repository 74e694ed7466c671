"""Everything that `gallery bench` can measure on this machine, in one command, with the figures put where they are published.

    python benchmarks/bench.py MACHINE                   small inputs, all tasks in all variants: results/MACHINE/bench-small.json and .png
    python benchmarks/bench.py MACHINE --large           large inputs: 224² pixels, 128 tokens: results/MACHINE/bench-large….json and .png
    python benchmarks/bench.py MACHINE --run 2           a second run beside the first: bench-small-2.json
    python benchmarks/bench.py MACHINE --only resnet50   some tasks only
    python benchmarks/bench.py MACHINE --resume          go on after an interruption

The pages of `results/` are then made anew (`pages.py`). On a GPU the tasks have their full sizes (ResNet-50: batch 128), which are
published as large inputs, and ResNet-50 is then trained at the largest batch that fits, found by doubling:
results/MACHINE/resnet50-largest.json. That part has not been run on a GPU. It takes hours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pages
from common import conditions, results_file, write_result

from gallery_lib import hardware, paths, tasks
from gallery_lib.cli import main as gallery
from gallery_lib.command import exit_code_of
from gallery_lib.config import TrainConfig
from gallery_lib.errors import GalleryError
from gallery_lib.launcher import launch
from gallery_lib.results import Results

LARGE = ("--image_size=224", "--sequence_length=128", "--rounds=6", "--block_steps=2")
LARGE_OF = {"tts_angular": ("--sequence_length=50", "--rounds=6", "--block_steps=4")}
"""Its mock utterances are shorter than 128 frames."""


def parts(names: list[str], *, large: bool, gpu: bool) -> dict[str, list[str]]:
    """Return the words of each `gallery bench` that is needed, by the name of its file; `names`: some tasks only, or none for all."""
    if gpu or not large:
        return {"bench-large" if gpu else "bench-small": names}
    chosen = names or tasks.names()
    found = {"bench-large": [name for name in chosen if name not in LARGE_OF] + list(LARGE)}
    if len(found["bench-large"]) == len(LARGE):
        found = {}
    return found | {f"bench-large-{name}": [name, *options] for name, options in LARGE_OF.items() if name in chosen}


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


def measured(machine: str, name: str, words: list[str]) -> int:
    """Run one `gallery bench` and publish its figures as `name`; return its exit code."""
    folder = paths.runs_dir() / f"{machine}-{name}"
    code = gallery(["bench", *words, f"--out={os.path.relpath(folder)}"])
    if (folder / "bench.json").exists():
        results_file(machine, f"{name}.json").parent.mkdir(parents=True, exist_ok=True)
        for ending in ("json", "png"):
            shutil.copy(folder / f"bench.{ending}", results_file(machine, f"{name}.{ending}"))
    return code


def main() -> int:
    """Measure, and publish the figures; the exit code is the largest of `gallery bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", help="a name for the machine: the folder of its figures")
    parser.add_argument("--large", action="store_true", help="large inputs (without a GPU; with one they always are)")
    parser.add_argument("--run", type=int, help="the number of this run, where there are several")
    parser.add_argument("--only", nargs="+", choices=tasks.names(), default=[], help="some tasks only")
    parser.add_argument("--resume", action="store_true", help="go on with what was interrupted")
    arguments = parser.parse_args()
    gpu = hardware.gpu_count() > 0
    code, number = 0, f"-{arguments.run}" if arguments.run else ""
    for name, words in parts(arguments.only, large=arguments.large, gpu=gpu).items():
        code = max(code, measured(arguments.machine, f"{name}{number}", [*words, *(["--resume"] if arguments.resume else [])]))
    if gpu and (not arguments.only or "resnet50" in arguments.only):
        with TemporaryDirectory() as runs:
            figures = {**conditions(), **largest_batch(Path(runs))}
            write_result(results_file(arguments.machine, "resnet50-largest.json"), figures)
    pages.write()
    return code


if __name__ == "__main__":
    sys.exit(exit_code_of(main, error_prefix="error", interrupted="interrupted; --resume goes on"))
