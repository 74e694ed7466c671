"""Compare compiler-opt with eager on ResNet-50 at 224², batch 16, in turns, with parity.

    python3 benchmarks/resnet50.py --out benchmarks/results/MACHINE/resnet50.json
    python3 benchmarks/resnet50.py --runs 1 --pairs O1

The first command makes three runs of each pair, in half an hour; the second makes one pair, once.
Pairs are `O1` and `O0` (baseline and compiler-opt at that level) and `fp32-O1` (eager fp32 against
compiler-opt at O1). The machine's own limits stand beside the figures. The ceiling is what the
fastest matrix product of the machine would allow: its rate over the 24.5 GFLOP of an image.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import torch
from figures_file import comparison_figures, conditions, exit_code, out_file, write_result

from gallery_lib import tasks
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.measure.bench.machine_limits import measure_limits
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.report import tables
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware

PAIRS = {"O1": ("O1", "O1"), "O0": ("O0", "O0"), "fp32-O1": ("O0", "O1")}


def compare_pair(
    pair: str, batch_size: int, image_size: int, options: CompareConfig
) -> dict[str, Any]:
    """Run one comparison, print its tables, and return its figures."""
    before, after = PAIRS[pair]
    base = TrainConfig(
        batch_size=batch_size, image_size=image_size, evaluate=False, amp_level=before
    )
    variants = {
        "baseline": base,
        "compiler-opt": dataclasses.replace(base, amp_level=after, compiler_opt=True),
    }
    with TemporaryDirectory() as folder:
        outcome = compare(variants, LaunchConfig(), options, folder=Path(folder))
        print(tables.comparison_text(outcome), flush=True)
    return {"pair": pair, **comparison_figures(outcome)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        choices=list(PAIRS),
        default=list(PAIRS),
        help="pairs to compare: O1, O0, fp32-O1 (default: all)",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="runs of each pair, minutes each; they show how figures repeat (default: 3)",
    )
    parser.add_argument("--batch_size", type=int, default=16, help="images of a step (default: 16)")
    parser.add_argument(
        "--image_size",
        type=int,
        default=224,
        help="height and width of an image in pixels (default: 224)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="turns of each variant; more narrow the interval, and take longer (default: 5)",
    )
    parser.add_argument(
        "--block_steps",
        type=int,
        default=2,
        help="steps of a turn, of which the first does not count (default: 2)",
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    return parser.parse_args()


def main() -> int:
    """Run all comparisons, print and write the figures, and return the exit code."""
    arguments = _arguments()
    torch.set_num_threads(hardware.cores())
    limits = measure_limits(torch.device(hardware.device_type()))
    flops = tasks.get("resnet50").flops_per_sample * (arguments.image_size / 224) ** 2
    ceilings = {dtype: rate / flops for dtype, rate in limits.matmul_flops_per_second.items()}
    print(
        "limits:",
        ", ".join(
            f"{dtype} {rate / 1e9:.0f} GFLOP/s = {ceilings[dtype]:.1f} images/s"
            for dtype, rate in limits.matmul_flops_per_second.items()
        ),
    )
    options = CompareConfig(rounds=arguments.rounds, block_steps=arguments.block_steps)
    rows = []
    for _ in range(arguments.runs):
        for pair in arguments.pairs:
            rows.append(compare_pair(pair, arguments.batch_size, arguments.image_size, options))
            if arguments.out:  # after each, so that an interrupted run keeps what it has
                result = {
                    "limits": dataclasses.asdict(limits),
                    "ceiling_samples_per_second": ceilings,
                    "comparisons": rows,
                }
                write_result(arguments.out, {**conditions(), **result})
    for row in rows:
        interval = row["speedup"]
        print(
            f"{row['pair']:8} {row['verdict']:26} " + (str(Ratio(**interval)) if interval else "")
        )
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
