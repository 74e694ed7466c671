"""Checks of a run before a process is started: what can be known to fail is refused here."""

from __future__ import annotations

import re

from gallery_lib import tasks
from gallery_lib.comm.rendezvous import listening_on, on_one_host
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
        run_folder.checked(config.run_dir, make=False, resume=resumes(config, launch))
    memory_estimate.check(config, launch.nproc_per_node)
    if launch.node_rank == 0:  # the others get its weights
        pretrained.check_file(config)
    tasks.data_of(config)


def check_address(launch: LaunchConfig) -> None:
    """Raise InputError on host 0 of several where it cannot listen on the address given."""
    if on_one_host(launch) or launch.node_rank != 0 or launch.dynamic:
        return
    host, port = launch.master_addr, launch.master_port or PORT
    if reason := cannot_listen(host, port):
        raise InputError(
            f"master_addr={host} with port {port} cannot be listened on: {reason}. Host 0 listens "
            "there, and nowhere else: give the address by which the other hosts reach it, and a "
            "port that is free.",
            parameter="master_addr",
        )


def cannot_listen(host: str, port: int) -> str:
    """Return why this host cannot listen there, or ""."""
    try:
        listening_on(host, port).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _check_hosts(launch: LaunchConfig) -> None:
    most = launch.hosts[1]
    endpoint(launch)
    if re.search(r"\s", launch.master_addr):
        raise InputError(
            f"master_addr={launch.master_addr!r} must be an address or a name, without blanks.",
            parameter="master_addr",
        )
    if launch.node_rank >= most:
        raise InputError(
            f"node_rank={launch.node_rank} must be below nnodes={launch.nnodes}; "
            "hosts are counted from 0.",
            parameter="node_rank",
        )
    at_home = launch.master_addr == LaunchConfig().master_addr
    if most > 1 and launch.rdzv_endpoint is None and at_home:
        raise InputError(
            f"nnodes={launch.nnodes} needs master_addr: "
            "the address of host 0, as the other hosts see it.",
            parameter="master_addr",
        )


def endpoint(launch: LaunchConfig) -> tuple[str, int]:
    """Return host and port at which the hosts of a run whose number may change meet.

    Raises:
        InputError: for text that is not HOST:PORT.
    """
    if launch.rdzv_endpoint is None:
        return launch.master_addr, launch.master_port or PORT
    host, _, port = launch.rdzv_endpoint.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise InputError(
            f"rdzv_endpoint={launch.rdzv_endpoint!r} must be HOST:PORT, such as 10.0.0.1:29400.",
            parameter="rdzv_endpoint",
        )
    return host, int(port)


def _check_restarts(config: ResolvedConfig, launch: LaunchConfig) -> None:
    if launch.restarts and config.checkpoint_every is None:
        name = "nnodes" if launch.elastic else "max_restarts"
        raise InputError(
            f"{name}={getattr(launch, name)} starts the run's processes again from the last "
            "checkpoint, and there is none: give checkpoint_every, such as 100 or 10min.",
            parameter=name,
        )
    if launch.dynamic and not config.run_dir:
        raise InputError(
            "a run of several hosts that meet anew, to start again or at rdzv_endpoint, needs "
            "run_dir: a folder that all hosts share.",
            parameter="run_dir",
        )


def resumes(config: ResolvedConfig, launch: LaunchConfig) -> bool:
    """Return whether the run's folder may hold checkpoints: of this run, interrupted before."""
    return config.resume is not None or launch.elastic
