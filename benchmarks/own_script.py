"""Measure the speed-up of an own script with the lines that README shows: two forms, in turns.

    python3 benchmarks/own_script.py --out benchmarks/results/MACHINE/own-script.json

docs/examples/plain.py and accelerated.py differ in the lines of README's diff and in nothing else.
Each run is a process of its own with fresh weights, in the order plain accelerated, accelerated
plain, …. The first steps of each run compile; they are left out. The losses of the first steps have
to agree before a speed-up is measured: those of two steps in float32, where an optimizer's step is
seen exactly, and the first in the precision that is measured. It takes about five minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import figures_file

from gallery_lib.console.text import seconds
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
    """Run one form of the script; return the seconds and the loss of each step."""
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


def _arguments() -> argparse.Namespace:
    parser = figures_file.parser(__doc__)
    parser.add_argument(
        "--data",
        default=str(data_dir("imagenet-small") / "train"),
        help="folder with a folder of images for each class (default: the mock ImageNet)",
    )
    figures_file.add_numbers(
        parser,
        rounds=(5, "runs of each form; more narrow the interval"),
        steps=(50, f"steps of a run; the first {WARMUP_STEPS} do not count"),
        batch_size=(16, "images of a step"),
        image_size=(64, "height and width of an image in pixels"),
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


def _run_in_turns(rounds: int, options: Sequence[str]) -> dict[str, list[list[float]]]:
    """Run both forms in turns; return the seconds of each run's steady steps, by form."""
    steady: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    with TemporaryDirectory() as folder:
        run("accelerated", options, Path(folder))  # fills the compiler's cache
        for number in range(rounds):
            for form in turn_order(FORMS, number):
                steps = run(form, options, Path(folder))["seconds"][WARMUP_STEPS:]
                steady[form].append(steps)
                print(f"{form}: {seconds(statistics.median(steps))} a step", flush=True)
    return steady


def _losses(options: Sequence[str], amp_level: str) -> list[list[float]]:
    """Return the losses of the first steps of both forms."""
    words = [*options, f"--steps={COMPARED_LOSSES[amp_level]}"]
    words += ["--bf16"] if amp_level == "O1" else []
    with TemporaryDirectory() as folder:
        return [run(form, words, Path(folder))["losses"] for form in FORMS]


def main() -> int:
    """Run both forms, print and write the figures, and return the exit code."""
    arguments = _arguments()
    bf16 = hardware.device_type() == "cuda" or hardware.computes_in_bf16("cpu")
    names = ("data", "steps", "batch_size", "image_size")
    options = [f"--{name}={getattr(arguments, name)}" for name in names]
    losses = {level: _losses(options, level) for level in ("O0", "O1")[: 1 + bf16]}
    for level, (plain, accelerated) in losses.items():
        pairs = zip(plain, accelerated, strict=True)
        if any(abs(one - other) > LOSS_TOLERANCE[level] * abs(one) for one, other in pairs):
            print(f"not comparable: the first losses are {losses}, so no speed-up is given")
            return 1
    steady = _run_in_turns(arguments.rounds, [*options, "--bf16"] if bf16 else options)
    ratio = ratio_of_medians(*(steady[form] for form in FORMS))
    print(f"the same training: {ratio}, {ratio.verdict}")
    medians = [statistics.median(itertools.chain(*steady[form])) for form in FORMS]
    size = f"batch {arguments.batch_size}, {arguments.image_size} pixels, {'bf16' if bf16 else ''}"
    table = [["ResNet-18", "plain step", "accelerated", "speed-up"]]
    table.append([size.removesuffix(", "), *map(seconds, medians), str(ratio)])
    heading = "The lines of README in a script of one's own"
    values = {"seconds": steady, "losses": losses, "speedup": dataclasses.asdict(ratio)}
    figures_file.write(arguments.out, values, heading, table)
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
