"""Measure what `gallery bench` can on this machine, and publish the figures.

    python3 benchmarks/bench.py MACHINE                   all tasks, small inputs
    python3 benchmarks/bench.py MACHINE --profile large   larger images and longer sequences
    python3 benchmarks/bench.py MACHINE --run 2           a second run beside the first
    python3 benchmarks/bench.py MACHINE --resume          continue after an interruption
    python3 benchmarks/bench.py MACHINE hf_Bert hf_Bart --profile large --batch_size 2
        --sequence_length 512 --name long-inputs          inputs that are neither small nor large

All other words are passed on to `gallery bench`. Figures of small inputs go to
results/MACHINE/bench-small.json and .png, those of a second run to bench-small-2.json, and those of
large inputs to bench-large.json. The pages are then made anew (`pages.py`). On a GPU the tasks have
their full sizes, which are published as large inputs. It takes hours.
"""

from __future__ import annotations

import os
import shutil
import sys

import figures_file
import pages

from gallery_lib.cli.main import main as gallery
from gallery_lib.system import hardware, paths


def main() -> int:
    """Measure and publish the figures, and return the exit code of `gallery bench`."""
    parser = figures_file.parser(__doc__, out=False)
    parser.allow_abbrev = False  # `gallery bench` has options that begin alike
    parser.add_argument("machine", help="folder of the figures in benchmarks/results/")
    parser.add_argument("--profile", default="auto", help="as of `gallery bench` (default: auto)")
    parser.add_argument("--run", type=int, help="number of this run; its files end with it")
    parser.add_argument("--name", choices=["long-inputs"], help="name of the published files")
    arguments, passed_on = parser.parse_known_args()
    full = arguments.profile == "auto" and hardware.gpu_count() > 0
    large = full or arguments.profile in ("large", "full")
    name = arguments.name or ("bench-large" if large else "bench-small")
    name += f"-{arguments.run}" if arguments.run else ""
    folder = paths.runs_dir() / f"{arguments.machine}-{name}"
    words = [f"--profile={arguments.profile}", *passed_on, f"--out={os.path.relpath(folder)}"]
    code = gallery(["bench", *words])
    if (folder / "bench.json").exists():
        target = figures_file.RESULTS / arguments.machine
        target.mkdir(parents=True, exist_ok=True)
        for ending in ("json", "png"):
            shutil.copy(folder / f"bench.{ending}", target / f"{name}.{ending}")
        pages.write()
    return code


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
