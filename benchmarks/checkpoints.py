"""Measure what checkpoints cost a step: blocks of steps with one and without, in turns.

    python3 benchmarks/checkpoints.py --out benchmarks/results/MACHINE/checkpoints.json

One training per task goes on in one process. In the order without, with, with, without, … it takes
blocks of 20 steps. In a block with a checkpoint the state is copied after the first step and
written in the background during the others; the block lasts until the checkpoint is whole, so all
of its cost is counted. The figures are seconds of a step with and without, of the copy that one
step waits for, and of the writing in the background.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from figures_file import conditions, exit_code, out_file, write_result

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians, turn_order

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
    from gallery_lib.checkpoint.writing import Outcome, Writer
    from gallery_lib.console.phases import PhaseLog
    from gallery_lib.train.checkpoints import parts_of
    from gallery_lib.train.recipe import Recipe
    from gallery_lib.train.resolved import resolve
    from gallery_lib.train.session import Observer, open_session

    with TemporaryDirectory() as folder:
        config = dataclasses.replace(config, run_dir=f"{folder}/run")
        resolved = resolve(config, local_processes=1, run_dir=f"{folder}/run")
        phases = PhaseLog(Path(folder) / "run", enabled=False)
        session = open_session(resolved, phases, Observer(), Recipe())
        session.model.train()
        session.clock.start()
        outcomes: list[Outcome] = []
        writer = Writer(Path(folder) / "checkpoints", 2, outcomes.append)
        batches, parts, steps = _batches(session), parts_of(session), 0
        seconds: dict[str, list[float]] = {form: [] for form in FORMS}
        copies: list[float] = []
        for number in range(-1, rounds):  # the first compiles, and does not count
            for form in turn_order(FORMS, number):
                began = time.perf_counter()
                for place in range(block_steps):
                    session.step(next(batches))
                    steps += 1
                    if form == "with" and place == 0:
                        writer.save(steps, parts.state())
                        copies.append(writer.copy_seconds)
                writer.wait()
                step_seconds = (time.perf_counter() - began) / block_steps
                if number >= 0:
                    seconds[form].append(step_seconds)
                print(f"{config.model}, {form}: {1e3 * step_seconds:.1f} ms a step", flush=True)
        if failures := [outcome.failure for outcome in outcomes if outcome.failure]:
            raise InputError(f"a checkpoint could not be written: {failures[0]}")
    written = outcomes[1:]
    ratio = ratio_of_medians([[s] for s in seconds["without"]], [[s] for s in seconds["with"]])
    return {
        "options": {name: getattr(resolved, name) for name in ("batch_size", *TASKS[config.model])},
        "step_seconds": seconds,
        "overhead": {
            "ratio": 1 / ratio.ratio - 1,
            "low": 1 / ratio.high - 1,
            "high": 1 / ratio.low - 1,
        },
        "first_copy_seconds": copies[0],
        "copy_seconds": copies[1:],
        "writing_seconds": [outcome.seconds for outcome in written],
        "checkpoint_bytes": written[-1].bytes,
    }


def _arguments() -> argparse.Namespace:
    """Return the arguments.

    Raises:
        InputError: for what cannot be measured.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--rounds", type=int, default=8, help="blocks of each form (default: %(default)s)"
    )
    parser.add_argument(
        "--block_steps", type=int, default=20, help="steps of a block (default: %(default)s)"
    )
    parser.add_argument(
        "--batch_size", type=int, help="samples of a step (default: 32 images, 16 texts)"
    )
    parser.add_argument(
        "--compiler-opt", action="store_true", help="train with the accelerated backend"
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 2 or arguments.block_steps < 2:
        raise InputError("--rounds and --block_steps must be at least 2.")
    return arguments


def main() -> int:
    """Measure the tasks, print and write the figures, and return the exit code."""
    arguments = _arguments()
    tasks: dict[str, Any] = {}
    for name in arguments.tasks:
        options = {**TASKS[name]}
        if arguments.batch_size:
            options["batch_size"] = arguments.batch_size
        config = TrainConfig(name, compiler_opt=arguments.compiler_opt, evaluate=False, **options)
        tasks[name] = figures = measure(config, arguments.rounds, arguments.block_steps)
        overhead = figures["overhead"]
        print(
            f"{name}: a checkpoint every {arguments.block_steps} steps makes a step "
            f"{100 * overhead['ratio']:+.2f} % longer "
            f"({100 * overhead['low']:+.2f} to {100 * overhead['high']:+.2f} %); "
            f"{figures['checkpoint_bytes'] / 2**20:.0f} MiB, copied in "
            f"{statistics.median(figures['copy_seconds']):.2f} s, written in "
            f"{statistics.median(figures['writing_seconds']):.2f} s",
            flush=True,
        )
    if arguments.out:
        values = {"block_steps": arguments.block_steps, "compiler_opt": arguments.compiler_opt}
        write_result(arguments.out, {**conditions(), **values, "tasks": tasks})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
