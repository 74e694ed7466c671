"""Measurement of a roofline: one training process, started and ended here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gallery_lib.config import LaunchConfig, RooflineConfig, TrainConfig, options
from gallery_lib.console.progress import Progress, progress_display
from gallery_lib.errors import InputError
from gallery_lib.launcher import preflight
from gallery_lib.measure.part import run_part
from gallery_lib.measure.profile.roofline import generated
from gallery_lib.measure.profile.roofline.result import (
    FILE,
    Roofline,
    read_roofline,
    write_roofline,
)
from gallery_lib.measure.profile.roofline.worker import ROUNDS_VARIABLE, WORKER
from gallery_lib.system import hardware, paths
from gallery_lib.system.processes import interruptible
from gallery_lib.train.resolved import resolve

PART = "roofline"
_STEPS_BEYOND_WARM_UP = 2
_PROFILER_IS_QUIET = {"KINETO_LOG_LEVEL": "99"}


def check_machine() -> None:
    """Raise InputError on a machine with a GPU."""
    if hardware.gpu_count():
        raise InputError(
            "--roofline measures CPUs: it was not made for GPUs, nor tried on one. "
            "With CUDA_VISIBLE_DEVICES= it measures this machine's CPU.",
            parameter="roofline",
        )


@interruptible("the roofline")
def measure(
    config: TrainConfig, asked: RooflineConfig, *, progress: bool | Progress = True
) -> tuple[Path, Roofline]:
    """Measure the roofline of a task's training step on this machine's CPU.

    Args:
        config: the training options; those of a run's length and files are replaced.
        asked: number of rounds, and the folder.
        progress: whether progress is shown, or an open display to use.

    Returns:
        The folder with `roofline.json`, and what it holds.

    Raises:
        InputError: for bad options, on a machine with a GPU, and where memory is short.
        RunFailed: the process fails.
        Interrupted: the measurement is stopped.
    """
    asked = options.checked(asked)
    check_machine()
    resolved = resolve(config, local_processes=1, run_dir="")
    preflight.check(resolved, LaunchConfig())
    folder = paths.output_folder(asked.out, PART, resume=False, file=FILE, work=PART)
    warmup = max(config.warmup_steps, 1)
    config = dataclasses.replace(
        config,
        amp_level=resolved.amp_level,
        warmup_steps=warmup,
        max_steps=warmup + _STEPS_BEYOND_WARM_UP,
        evaluate=False,
        run_dir=str(paths.free_name(folder, "run")),
    )
    with progress_display(progress) as shown:
        roofline = _measured(config, asked.rounds, shown)
    write_roofline(folder / FILE, roofline)
    return folder, roofline


def _measured(config: TrainConfig, rounds: int, progress: Progress) -> Roofline:
    assert config.run_dir is not None
    variables = {**generated.VARIABLES, **_PROFILER_IS_QUIET, ROUNDS_VARIABLE: str(rounds)}
    run_part(
        config,
        LaunchConfig(),
        module=WORKER,
        environment=variables,
        progress=progress,
        name=f"{config.model.rsplit(':', 1)[-1]}, {PART}",
        part=PART,
    )
    return read_roofline(Path(config.run_dir) / FILE)
