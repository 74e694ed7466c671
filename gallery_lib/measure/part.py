"""A run that is a part of a measurement: started, shown while it lasts, and ended."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.console.progress import Progress
from gallery_lib.launcher.job import start

_LOOK_SECONDS = 0.2


def run_part(
    config: TrainConfig,
    launch: LaunchConfig,
    *,
    module: str,
    environment: Mapping[str, str],
    progress: Progress,
    name: str,
    part: str,
) -> None:
    """Run a part to its end; what it has measured is in its run's folder.

    Args:
        config: options of the run, with its folder.
        launch: its processes.
        module: Python module that each process runs.
        environment: variables for them on top of this process's own.
        progress: display of the run's phases.
        name: of the run, on the display.
        part: name under which the times of all phases are added up.

    Raises:
        InputError: the request makes no sense.
        RunFailed: a process has failed.
    """
    job = start(config, launch, module=module, environment=environment, torchrun=False)
    try:
        view = job.view(progress, name=name, part=part)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        job.result()
    finally:
        job.stop()
