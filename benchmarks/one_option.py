"""Measure what one option of `accelerate()` changes of a training step, in turns.

    python3 benchmarks/one_option.py compiler.large_batch_norms --model resnet50 --image_size 224
    python3 benchmarks/one_option.py compiler.vector_dropout --model hf_Bert --sequence_length 128

Two trainings of the same task in one process differ in the option alone, one with it and one
without. Each has one batch; the loader is left out. They take blocks of steps in the order A B B A,
and the first step of a block does not count. Beside seconds, the processor time of all threads is
printed, which other programs disturb less; with OMP_WAIT_POLICY=PASSIVE in the environment, threads
that wait do not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import figures_file

from gallery_lib.config import Config, TrainConfig, switches
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.stats import ratio_of_medians

FORMS = ("without", "with")


def passes() -> list[str]:
    """Return the graph passes that can be left out."""
    from gallery_lib.compiler.passes import ORDER

    return [one.option for one in ORDER if one.option]


def switches_of_config() -> list[str]:
    """Return the options of `Config` that are on or off, and graph passes, as `section.name`."""
    config = Config()
    return [
        f"{section.name}.{name}"
        for section in dataclasses.fields(config)
        if dataclasses.is_dataclass(value := getattr(config, section.name))
        for name, default in dataclasses.asdict(value).items()
        if isinstance(default, bool)
    ] + [f"compiler.{name}" for name in passes()]


def open_training(config: TrainConfig) -> Any:
    """Return a run of `config` in progress; its folder is `config.run_dir`."""
    from gallery_lib.console.progress import PhaseLog
    from gallery_lib.train.resolved import resolve
    from gallery_lib.train.session import Observer, Recipe, open_session

    folder = str(config.run_dir)
    resolved = resolve(config, local_processes=1, run_dir=folder)
    with switches.of_run(config.compiler_opt, config.kernels):
        phases = PhaseLog(Path(folder), enabled=False)
        session = open_session(resolved, phases, Observer(), Recipe())
    session.model.train()
    session.clock.start()
    return session


def training_with(option: str, on: bool, config: TrainConfig) -> Any:
    """Return a run of `config` in progress whose option `section.name` is `on`."""
    from gallery_lib.train import session

    section, name = option.split(".")
    if option == "compute.kernels":  # the tasks' losses ask the switches of the run
        config = dataclasses.replace(config, kernels=on)
    backend_config = session.backend_config

    def changed(asked: TrainConfig) -> Config:
        result = backend_config(asked)
        if name in passes():
            result.compiler.without = () if on else (name,)
        else:
            setattr(getattr(result, section), name, on)
        return result

    with mock.patch.object(session, "backend_config", changed):
        return open_training(config)


def block(session: Any, batch: Any, steps: int) -> list[tuple[float, float]]:
    """Train some steps; return each one's seconds, and those of processors, but the first's."""
    times = []
    with switches.of_run(session.config.compiler_opt, session.config.kernels):
        for _ in range(steps):
            began, used = time.perf_counter(), time.process_time()
            session.step(batch)
            times.append((time.perf_counter() - began, time.process_time() - used))
    return times[1:]


def _arguments() -> argparse.Namespace:
    parser = figures_file.parser(__doc__, out=False)
    parser.add_argument("option", metavar="OPTION", help="section.name of an option of Config")
    parser.add_argument("--model", default="resnet50", help="task to train (default: resnet50)")
    parser.add_argument("--amp_level", default="O1", help="O0 or O1 (default: O1)")
    for name in ("batch_size", "image_size", "sequence_length"):
        parser.add_argument(f"--{name}", type=int, help="default: the task's")
    figures_file.add_numbers(
        parser, rounds=(8, "blocks of each form", 2), block_steps=(3, "steps of a block", 2)
    )
    arguments = parser.parse_args()
    if arguments.option not in (known := switches_of_config()):
        raise InputError(
            f"OPTION: `{arguments.option}` is no option that is on or off."
            f"{did_you_mean(arguments.option, known)} Known: {', '.join(known)}.",
            parameter="option",
        )
    return arguments


def main() -> int:
    """Measure, print, and return the exit code."""
    arguments = vars(_arguments())
    option, rounds, steps = (arguments.pop(name) for name in ("option", "rounds", "block_steps"))
    config = TrainConfig(**arguments, compiler_opt=True, evaluate=False)
    with TemporaryDirectory() as folder:
        sessions = {}
        for form in FORMS:
            own = dataclasses.replace(config, run_dir=f"{folder}/{form}")
            sessions[form] = training_with(option, form == "with", own)
        batch = next(iter(sessions[FORMS[0]].loader))

        def turn(form: str) -> list[tuple[float, float]]:
            return block(sessions[form], batch, steps)

        blocks = figures_file.in_turns(FORMS, rounds, turn, warm_up=True)
    for form, session in sessions.items():
        print(f"{form}: {'; '.join(f'{k}: {v}' for k, v in sorted(session.techniques.items()))}")
    for place, what in enumerate(("seconds", "processor seconds")):
        times = {form: [[step[place] for step in b] for b in blocks[form]] for form in FORMS}
        medians = ", ".join(f"{form} {figures_file.median(times[form]):.3f}" for form in FORMS)
        ratio = ratio_of_medians(*times.values())
        print(f"{config.model}, {what} of a step: {medians}; {option} {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(main))
