"""Files in a run's folder before its processes start: an earlier run's cleared, its own written."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.comm.rendezvous import forget_meeting, meeting_environment, on_one_host
from gallery_lib.config import LaunchConfig
from gallery_lib.launcher import run_folder
from gallery_lib.launcher.description import RunDescription
from gallery_lib.train.resolved import ResolvedConfig


def prepare(
    config: ResolvedConfig, launch: LaunchConfig, *, torchrun: bool, held: bool
) -> dict[str, str]:
    """Clear the folder of an earlier run's files and describe this one in it.

    Return the variables that lead its processes to the description and to their rendezvous.
    """
    folder = Path(config.run_dir)
    run_folder.clear(folder, launch.node_rank, resume=config.resume is not None)
    variables = RunDescription(
        config,
        world_size=launch.hosts[1] * launch.nproc_per_node,
        local_processes=launch.nproc_per_node,
        host=launch.node_rank,
        held=held,
        restarts=launch.restarts,
    ).write()
    if on_one_host(launch):
        forget_meeting(folder)
        variables |= meeting_environment(folder) if torchrun else {}
    return variables
