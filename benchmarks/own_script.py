"""Measure the speed-up of an own script with the lines that README shows: two forms, in turns.

    python3 benchmarks/own_script.py --out benchmarks/results/MACHINE/own-script.json

docs/examples/plain.py and accelerated.py differ in the lines of README's diff and in nothing else.
Each run is a process of its own with fresh weights, in the order plain accelerated, accelerated
plain, …. The first steps of each run compile; they are left out of the speed-up and given as
start-up. The losses of the first steps have to agree before a speed-up is printed: those of two
steps in float32, where an optimizer's step is seen exactly, and the first in the precision that is
measured. It takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, out_file, write_result

from gallery_lib.errors import GalleryError, InputError
from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
from gallery_lib.stats import ratio_of_medians, turn_order
from gallery_lib.system import hardware
from gallery_lib.system.paths import data_dir

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"
FORMS = ("plain", "accelerated")
WARMUP_STEPS = 10
COMPARED_LOSSES = {"O0": 2, "O1": 1}
"""Number of first losses that have to agree, by precision.

Later ones diverge: AdamW's first steps follow the sign of a gradient, which rounding may turn. In
bf16 it turns many.
"""


def run(form: str, options: Sequence[str], folder: Path) -> dict[str, list[float]]:
    """Run one form of the script; return the seconds and the loss of each step.

    Raises:
        GalleryError: when the script fails.
    """
    log = folder / "log.json"
    environment = {**os.environ, "OMP_NUM_THREADS": str(hardware.cores())}
    command = [sys.executable, str(EXAMPLES / f"{form}.py"), f"--log={log}", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise GalleryError(
            f"{form}.py failed with exit code {done.returncode}:\n{done.stderr.strip()}"
        )
    values: dict[str, list[float]] = json.loads(log.read_text())
    return values


def losses_differ(plain: Sequence[float], accelerated: Sequence[float], amp_level: str) -> float:
    """Return how far apart the first losses are, as a multiple of the allowed rounding.

    A value above 1 is too much.
    """
    pairs = list(zip(plain, accelerated, strict=True))[: COMPARED_LOSSES[amp_level]]
    return max(abs(a - b) / (LOSS_TOLERANCE[amp_level] * abs(a)) for a, b in pairs)


def _arguments() -> argparse.Namespace:
    """Return the arguments.

    Raises:
        InputError: for what cannot be measured.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default=str(data_dir("imagenet-small") / "train"),
        help="folder with a folder of images for each class (default: the mock ImageNet)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="runs of each form; more narrow the interval, and take longer (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=50,
        help=f"steps of a run; the first {WARMUP_STEPS} do not count (default: %(default)s)",
    )
    parser.add_argument(
        "--batch_size", type=int, default=16, help="images of a step (default: %(default)s)"
    )
    parser.add_argument(
        "--image_size",
        type=int,
        default=64,
        help="height and width of an image in pixels (default: %(default)s)",
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.steps <= WARMUP_STEPS:
        raise InputError(f"--rounds must be at least 2 and --steps at least {WARMUP_STEPS + 1}.")
    if not Path(arguments.data).is_dir():
        raise InputError(
            f"--data {arguments.data} is no folder. `bash prepare.sh` makes the mock ImageNet.",
            parameter="data",
        )
    return arguments


def _run_in_turns(rounds: int, options: Sequence[str]) -> dict[str, list[dict[str, list[float]]]]:
    """Run both forms in turns; return seconds and losses of each run, by form."""
    runs: dict[str, list[dict[str, list[float]]]] = {form: [] for form in FORMS}
    with TemporaryDirectory() as folder:
        run("accelerated", options, Path(folder))  # fills the compiler's cache
        for number in range(rounds):
            for form in turn_order(FORMS, number):
                runs[form].append(run(form, options, Path(folder)))
                steady = sorted(runs[form][-1]["seconds"][WARMUP_STEPS:])
                print(
                    f"round {number + 1}, {form}: {1e3 * steady[len(steady) // 2]:.0f} ms a step",
                    flush=True,
                )
    return runs


def _first_losses_in_float32(options: Sequence[str]) -> dict[str, list[float]]:
    """Return the losses of the first steps of both forms, without autocast."""
    steps = f"--steps={COMPARED_LOSSES['O0']}"
    with TemporaryDirectory() as folder:
        return {form: run(form, [*options, steps], Path(folder))["losses"] for form in FORMS}


def main() -> int:
    """Run both forms, print and write the figures, and return the exit code."""
    arguments = _arguments()
    bf16 = hardware.device_type() == "cuda" or hardware.computes_in_bf16("cpu")
    amp_level = "O1" if bf16 else "O0"
    names = ("data", "steps", "batch_size", "image_size")
    options = [f"--{name}={getattr(arguments, name)}" for name in names]
    first_losses = {"O0": _first_losses_in_float32(options)}
    runs = _run_in_turns(arguments.rounds, [*options, "--bf16"] if bf16 else options)
    if bf16:
        first_losses["O1"] = {form: runs[form][0]["losses"] for form in FORMS}
    result: dict[str, Any] = {
        "amp_level": amp_level,
        "batch_size": arguments.batch_size,
        "image_size": arguments.image_size,
        "warmup_steps": WARMUP_STEPS,
        "runs": runs,
        "losses_in_float32": first_losses["O0"],
    }
    share = max(
        losses_differ(losses["plain"], losses["accelerated"], level)
        for level, losses in first_losses.items()
    )
    if share > 1:
        print(
            f"not comparable: the first losses differ by {share:.1f} times what rounding is "
            "allowed, so no speed-up is given"
        )
    else:
        plain, accelerated = (
            [values["seconds"][WARMUP_STEPS:] for values in runs[form]] for form in FORMS
        )
        ratio = ratio_of_medians(plain, accelerated)
        result["speedup"] = {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
        print(
            f"the same training (first losses within {share:.2f} of what rounding is allowed); "
            f"{amp_level}: {ratio}, {ratio.verdict}"
        )
    if arguments.out:
        write_result(arguments.out, {**conditions(), **result})
    return 0 if share <= 1 else 1


if __name__ == "__main__":
    sys.exit(exit_code(main))
