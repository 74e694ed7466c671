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
    module: str,
    environment: Mapping[str, str],
    progress: Progress,
    *,
    label: str,
    part: str,
) -> None:
    """Run `module` in each process to its end, in the folder of `config`.

    Progress shows `label: part` and adds up the times of all phases under `part`.

    Raises:
        InputError: the request makes no sense.
        RunFailed: a process has failed.
    """
    job = start(config, launch, module=module, environment=environment, torchrun=False)
    try:
        view = job.view(progress, name=f"{label}, {part}", part=part)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        job.result()
    finally:
        job.stop()
