"""Checks of a run before a process is started: what can be known to fail is refused here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.checkpoint.folders import CHECKPOINTS, newest_first
from gallery_lib.checkpoint.training import REQUEST_FILE
from gallery_lib.comm.rendezvous import listening_on
from gallery_lib.config import LaunchConfig
from gallery_lib.console.exit_code import refusal
from gallery_lib.console.progress import PHASES_FILE
from gallery_lib.errors import InputError
from gallery_lib.launcher.forked import HELD_FILE
from gallery_lib.system import hardware
from gallery_lib.system.files import LockHeld, locked
from gallery_lib.tasks import memory_estimate
from gallery_lib.train import pretrained
from gallery_lib.train.failure import ERROR_FILES
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
    autocast_dtype(config.amp_level, config.amp_dtype, "cuda" if gpus else "cpu")
    if config.run_dir:
        checked_folder(config.run_dir, make=False, resume=config.resume is not None)
    memory_estimate.check(config, launch.nproc_per_node)
    if config.pretrained is not None:
        pretrained.read_weights(Path(config.pretrained))
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


# --------------------------------------------------------------------------------------------------
# The folder of a run: checked before anything is trained, and locked against a second run


_OF_A_RUN = re.compile(
    r"(config|phases|results|losses|traffic)\.json|steps\.jsonl"
    r"|failure\.txt|held|checkpoints|\..*\.tmp"
    r"|(rendezvous|torchrun|launcher-host|log-rank|error-rank|probe|initial-|slurm-|run-host"
    r"|end-requested-host|\.lock-host).*"
)
"""Names of files that a run that did not finish may have left."""
_SHOWN = 3


def checked_folder(run_dir: str, *, make: bool = True, resume: bool = False) -> Path:
    """Return the folder that `run_dir` names; with `make`, create it where there is none.

    Only with `resume` may it hold checkpoints of a run that has not finished.

    Raises:
        InputError: for a folder that cannot be made or written to, or holds a finished run or files
            of something else.
    """
    try:
        folder = Path(run_dir).expanduser()
        fault = _fault(run_dir, folder, resume)
        if make and not fault:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                fault = "may not be written by this user. Name another folder."
    except RuntimeError as error:  # ~somebody is no user
        fault = f"cannot be used. {error}"
    except OSError as error:
        fault = f"cannot be used. {refusal(error)}."
    if fault:
        raise InputError(f"run_dir={run_dir} {fault}", parameter="run_dir")
    return folder


def _fault(run_dir: str, folder: Path, resume: bool) -> str:
    """Return what is wrong with a folder, or ""; `run_dir` is the folder as it was named."""
    if run_dir.startswith("-"):
        return f"begins with a dash, as options do. A folder of that name is written ./{run_dir}."
    if folder.exists() and not folder.is_dir():
        return "is a file. Name a new folder."
    there = sorted(file.name for file in folder.iterdir()) if folder.exists() else []
    if foreign := [name for name in there if not _OF_A_RUN.fullmatch(name)]:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        shown = ", ".join(foreign[:_SHOWN])
        return f"holds files of something else ({shown}{more}). Name a new folder."
    if "results.json" in there:
        return "holds a finished run. Name a new folder, or move that one away."
    if not resume and newest_first(folder / CHECKPOINTS):
        return (
            "holds checkpoints of a run that has not finished: --resume=auto goes on with it. "
            "For a new run name a new folder."
        )
    return ""


def clear_folder(folder: Path, host: int) -> None:
    """Remove what would be taken for this run's from a folder in which a run has broken off.

    Other hosts of the run may be at work already: what they ask of their own ranks stays.
    """
    for name in (ERROR_FILES, HELD_FILE, PHASES_FILE, REQUEST_FILE.format(host)):
        for file in folder.glob(name):
            file.unlink()


@contextlib.contextmanager
def locked_for_host(folder: Path, host: int) -> Iterator[None]:
    """Context: one host of a run has the folder, until the end of this process at most.

    Raises:
        InputError: where another run is at work in it.
    """
    file = folder / f".lock-host{host}"
    try:
        with locked(file, wait=False):
            yield
            file.unlink(missing_ok=True)
    except LockHeld:
        raise InputError(
            f"run_dir={folder}: another run is at work in it. Wait for it, or name another folder.",
            parameter="run_dir",
        ) from None
