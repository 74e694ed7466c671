"""Measure what checkpoints cost a step: blocks of steps with one and without, in turns.

    python3 benchmarks/checkpoints.py --out benchmarks/results/MACHINE/checkpoints.json

One training per task goes on in one process. In the order without, with, with, without, … it takes
blocks of 20 steps. In a block with a checkpoint the state is copied after the first step and
written in the background during the others; the block lasts until the checkpoint is whole, so all
of its cost is counted. The figures are seconds of a step with and without, and of the copy that one
step waits for.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import figures_file
from one_option import open_training

from gallery_lib.config import TrainConfig
from gallery_lib.console.text import seconds
from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians

TASKS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch_size": 32, "image_size": 224},
    "hf_Bert": {"batch_size": 16, "sequence_length": 128},
}
FORMS = ("without", "with")


def _batches(session: Any) -> Iterator[Any]:
    while True:
        yield from session.loader


def measure(config: TrainConfig, rounds: int, block_steps: int) -> dict[str, Any]:
    """Return the seconds of each block's steps, by form, and of each copy and writing."""
    from gallery_lib.checkpoint import Checkpoint

    with TemporaryDirectory() as folder:
        session = open_training(dataclasses.replace(config, run_dir=f"{folder}/run"))
        checkpoint = Checkpoint(
            f"{folder}/checkpoints",
            model=session.model,
            optimizer=session.optimizer,
            scheduler=session.updates.schedule,
            loader=session.loader,
            every=10**6,
        )
        batches = _batches(session)
        copies: list[float] = []

        def block(form: str) -> list[float]:
            began = time.perf_counter()
            for place in range(block_steps):
                session.step(next(batches))
                checkpoint.steps += 1
                if form == "with" and place == 0:
                    before = time.perf_counter()
                    checkpoint.save()
                    copies.append(time.perf_counter() - before)
            checkpoint.close()  # waits until it is written
            if checkpoint.failure:
                raise InputError(f"a checkpoint could not be written: {checkpoint.failure}")
            step_seconds = (time.perf_counter() - began) / block_steps
            print(f"{config.model}, {form}: {1e3 * step_seconds:.1f} ms a step", flush=True)
            return [step_seconds]

        blocks = figures_file.in_turns(FORMS, rounds, block, warm_up=True)
        checkpoint_bytes = next(checkpoint.folder.iterdir()).stat().st_size
    ratio = ratio_of_medians(*blocks.values())
    return {
        "options": {name: getattr(session.config, name) for name in TASKS[config.model]},
        "step_seconds": {form: [step for (step,) in blocks[form]] for form in FORMS},
        "overhead": [1 / limit - 1 for limit in (ratio.high, ratio.ratio, ratio.low)],
        "copy_seconds": copies[1:],
        "checkpoint_bytes": checkpoint_bytes,
    }


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of steps with checkpoints and without."""
    table = [["task", "batch", "step without", "with", "overhead", "copy", "size"]]
    for name, one in found.items():
        low, ratio, high = (100 * limit for limit in one["overhead"])
        durations = [*one["step_seconds"].values(), one["copy_seconds"]]
        without, with_one, copy = (seconds(figures_file.median([times])) for times in durations)
        overhead = f"{ratio:+.1f} % ({low:+.1f} to {high:+.1f} %)"
        size = f"{one['checkpoint_bytes'] / 2**20:.0f} MiB"
        batch = str(one["options"]["batch_size"])
        table.append([name, batch, without, with_one, overhead, copy, size])
    return table


def main() -> int:
    """Measure the tasks, print and write the figures, and return the exit code."""
    parser = figures_file.parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    figures_file.add_numbers(
        parser, rounds=(8, "blocks of each form", 2), block_steps=(20, "steps of a block", 2)
    )
    text = "samples of a step (default: 32 images, 16 texts)"
    parser.add_argument("--batch_size", type=int, help=text)
    text = "train with the accelerated backend"
    parser.add_argument("--compiler-opt", action="store_true", help=text)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name in arguments.tasks:
        options = TASKS[name] | {"compiler_opt": arguments.compiler_opt, "evaluate": False}
        options["batch_size"] = arguments.batch_size or options["batch_size"]
        config = TrainConfig(name, amp_level="O0", **options)
        found[name] = measure(config, arguments.rounds, arguments.block_steps)
        values = {"block_steps": arguments.block_steps, "tasks": found}
        figures_file.write(arguments.out, values, "What checkpoints cost", rows_of(found))
    figures_file.show(rows_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
