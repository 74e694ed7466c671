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
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import figures_file

from gallery_lib.console.text import seconds
from gallery_lib.errors import InputError
from gallery_lib.launcher.job import run_script
from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
from gallery_lib.stats import ratio_of_medians
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


def run(form: str, options: Sequence[str]) -> dict[str, list[float]]:
    """Run one form of the script; return the seconds and the loss of each step."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.json"
        run_script(EXAMPLES / f"{form}.py", [f"--log={log}", *options])
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
        rounds=(5, "runs of each form; more narrow the interval", 2),
        steps=(50, f"steps of a run; the first {WARMUP_STEPS} do not count", WARMUP_STEPS + 1),
        batch_size=(16, "images of a step"),
        image_size=(64, "height and width of an image in pixels"),
    )
    arguments = parser.parse_args()
    if not Path(arguments.data).is_dir():
        raise InputError(
            f"--data {arguments.data} is no folder. `bash prepare.sh` makes the mock ImageNet.",
            parameter="data",
        )
    return arguments


def _run_in_turns(rounds: int, options: Sequence[str]) -> dict[str, list[list[float]]]:
    """Run both forms in turns; return the seconds of each run's steady steps, by form."""
    run("accelerated", options)  # fills the compiler's cache

    def turn(form: str) -> list[float]:
        steps = run(form, options)["seconds"][WARMUP_STEPS:]
        print(f"{form}: {seconds(figures_file.median([steps]))} a step", flush=True)
        return steps

    return figures_file.in_turns(FORMS, rounds, turn)


def _losses(options: Sequence[str], amp_level: str) -> list[list[float]]:
    """Return the losses of the first steps of both forms."""
    words = [*options, f"--steps={COMPARED_LOSSES[amp_level]}"]
    words += ["--bf16"] if amp_level == "O1" else []
    return [run(form, words)["losses"] for form in FORMS]


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
    ratio = ratio_of_medians(*steady.values())
    print(f"the same training: {ratio}, {ratio.verdict}")
    medians = [figures_file.median(steady[form]) for form in FORMS]
    size = f"batch {arguments.batch_size}, {arguments.image_size} pixels, {'bf16' if bf16 else ''}"
    table = [["ResNet-18", "plain step", "accelerated", "speed-up"]]
    table.append([size.removesuffix(", "), *map(seconds, medians), str(ratio)])
    heading = "The lines of README in a script of one's own"
    values = {"seconds": steady, "losses": losses, "speedup": dataclasses.asdict(ratio)}
    figures_file.write(arguments.out, values, heading, table)
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
