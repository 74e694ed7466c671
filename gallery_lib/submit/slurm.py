"""Slurm's commands on this machine: queue a job, and list those that were queued from here."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.config import SlurmConfig
from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.submit import batch_file
from gallery_lib.submit.program import Program
from gallery_lib.system.files import atomic_write

_FIELDS = {"job": "%i", "state": "%T", "name": "%j", "time": "%M", "limit": "%l", "nodes": "%D"}
_WHERE, _COMMENT = "%R", "%k"
_SEPARATOR = "|"


@dataclass(frozen=True)
class QueuedJob:
    """A job as squeue shows it; `where` has its nodes, or the reason why it waits."""

    job: str
    state: str
    name: str
    time: str
    limit: str
    nodes: str
    where: str
    run_dir: str


def command(name: str) -> str:
    """Return the path of a command of Slurm.

    Raises:
        InputError: the message says what to do.
    """
    path = shutil.which(name)
    if path is None:
        raise InputError(
            f"Slurm's command `{name}` is not on this machine. Run this on a login node of the "
            "cluster, or print the batch file with --dry-run and submit it there.",
            parameter=name,
        )
    return path


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, errors="replace")


def submit(job: Program, config: SlurmConfig, folder: Path) -> str:
    """Write the batch file to the run's folder, queue it, and return the job's number.

    Raises:
        InputError: sbatch refuses it, or the folder cannot be made. Then nothing is queued, and
            nothing of it is left.
    """
    sbatch = command("sbatch")
    text = batch_file.text(job, config, folder)
    made = not folder.exists()
    file = folder / batch_file.FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as opened:
            opened.write(text)
    except OSError as error:
        raise InputError(
            f"run_dir={folder} cannot be used. {refusal(error)}.", parameter="run_dir"
        ) from None
    queued = False
    try:
        done = _run([sbatch, "--parsable", str(file)])
        queued = done.returncode == 0
    finally:
        if not queued:
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                if made:
                    folder.rmdir()
    if not queued:
        said = " ".join(done.stderr.replace("sbatch: error: ", "").split())
        raise InputError(
            f"sbatch refused the job, and nothing is queued: {said}",
            parameter="sbatch",
        )
    return done.stdout.strip().partition(";")[0]


def jobs() -> list[QueuedJob]:
    """Return this user's jobs that `gallery submit slurm` has queued, in the order of squeue.

    Raises:
        InputError: there is no squeue here.
        RunFailed: squeue failed.
    """
    form = _SEPARATOR.join([*_FIELDS.values(), _WHERE, _COMMENT])
    done = _run([command("squeue"), "--me", "--noheader", f"--format={form}"])
    if done.returncode:
        raise RunFailed(f"squeue failed: {' '.join(done.stderr.split())}")
    queued = []
    for line in done.stdout.splitlines():
        *fields, where, comment = line.split(_SEPARATOR, len(_FIELDS) + 1)
        if comment.startswith(batch_file.COMMENT):
            run_dir = comment.removeprefix(batch_file.COMMENT)
            named = dict(zip(_FIELDS, fields, strict=True))
            queued.append(QueuedJob(**named, where=where, run_dir=run_dir))
    return queued
