"""Checks of a run before a process is started: what can be known to fail is refused here."""

from __future__ import annotations

from gallery_lib import tasks
from gallery_lib.comm.rendezvous import listening_on
from gallery_lib.config import LaunchConfig
from gallery_lib.errors import InputError
from gallery_lib.launcher import run_folder
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate
from gallery_lib.train import pretrained
from gallery_lib.train.precision import autocast_dtype
from gallery_lib.train.resolved import ResolvedConfig

PORT = 29400
"""Port on which host 0 of several listens, unless told otherwise."""


def check(config: ResolvedConfig, launch: LaunchConfig) -> None:
    """Raise InputError for devices, hosts, precision, folder, memory or data that will not do."""
    gpus, cores = hardware.gpu_count(), hardware.cores()
    if config.threads > cores:
        raise InputError(
            f"threads={config.threads}: this host has {cores} CPU core(s), so at most {cores}. "
            "More would only wait for one another.",
            parameter="threads",
        )
    if launch.nproc_per_node > (gpus or cores):
        what = f"{gpus} GPU(s)" if gpus else f"{cores} CPU core(s) and no GPU"
        raise InputError(
            f"nproc_per_node={launch.nproc_per_node}: this host has {what}, so at most "
            f"{gpus or cores}.",
            parameter="nproc_per_node",
        )
    _check_hosts(launch)
    _check_restarts(config, launch)
    autocast_dtype(config, "cuda" if gpus else "cpu")
    if config.run_dir:
        run_folder.checked(config.run_dir, make=False, resume=config.resume is not None)
    memory_estimate.check(config, launch.nproc_per_node)
    pretrained.weights_of(config)
    tasks.data_of(config)


def check_address(launch: LaunchConfig) -> None:
    """Raise InputError on host 0 of several where it cannot listen on the address given."""
    if launch.nnodes == 1 or launch.node_rank != 0:
        return
    host, port = launch.master_addr, launch.master_port or PORT
    try:
        listening_on(host, port).close()
    except OSError as error:
        raise InputError(
            f"master_addr={host} with port {port} cannot be listened on: "
            f"{error.strerror or error}. Host 0 listens there, and nowhere else: give the address "
            "by which the other hosts reach it, and a port that is free.",
            parameter="master_addr",
        ) from None


def _check_hosts(launch: LaunchConfig) -> None:
    if launch.node_rank >= launch.nnodes:
        raise InputError(
            f"node_rank={launch.node_rank} must be below nnodes={launch.nnodes}; "
            "hosts are counted from 0.",
            parameter="node_rank",
        )
    if launch.nnodes > 1 and launch.master_addr == LaunchConfig().master_addr:
        raise InputError(
            f"nnodes={launch.nnodes} needs master_addr: "
            "the address of host 0, as the other hosts see it.",
            parameter="master_addr",
        )


def _check_restarts(config: ResolvedConfig, launch: LaunchConfig) -> None:
    if launch.max_restarts and launch.nnodes > 1:
        raise InputError(
            f"max_restarts={launch.max_restarts} is for one host. Over several, have "
            "the job queued again, as docs/examples/slurm.sh does.",
            parameter="max_restarts",
        )
    if launch.max_restarts and config.checkpoint_every is None:
        raise InputError(
            f"max_restarts={launch.max_restarts} starts the run's processes again from the last "
            "checkpoint, and there is none: give checkpoint_every, such as 100 or 10min.",
            parameter="max_restarts",
        )
