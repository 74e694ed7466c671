"""Rows for checkpoints: what cannot be written, what is damaged, and a kill in a write."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from gallery_lib.checkpoint import folders
from gallery_lib.errors import InputError

from .commands import Words, train
from .driver import Row
from .workspace import Command, Workspace, started

_KIND = "checkpoints"
_FIRST, _SECOND = "step-00000010", "step-00000020"


def _saving(*more: str, steps: int = 30) -> Words:
    """Return the command of a run that saves a checkpoint every ten steps."""
    return train("SLOW", "--checkpoint_every", "10", *more, steps=steps)


def _checkpoints(workspace: Workspace) -> Path:
    return workspace.folder / "run" / folders.CHECKPOINTS


def _whole(workspace: Workspace, *names: str, folder: Path | None = None) -> str:
    """Return what is wrong with the checkpoints of these names, or ""."""
    try:
        for name in names:
            folders.read_whole((folder or _checkpoints(workspace)) / name)
    except InputError as error:
        return str(error)
    return ""


def _survived(
    *names: str, folder: str | None = None, reason: str = ""
) -> Callable[[Workspace, Command], str]:
    """Return a check that these checkpoints are whole, and that nothing unfinished is left.

    The log must give the reason why others could not be saved.
    """

    def check(workspace: Workspace, command: Command) -> str:
        if reason not in command.result():
            return f"it does not say {reason!r}"
        place = _checkpoints(workspace) if folder is None else workspace.folder / folder
        left = [path.name for path in place.glob(".*.tmp")]
        return f"{left} is left" if left else _whole(workspace, *names, folder=place)

    return check


def _on_small_disk(words: Words) -> Words:
    """Return the command with its checkpoints on a disk that is full after the first of them.

    The disk is one of a mount namespace, so it is gone with the command. Its checkpoints are copied
    to the folder `seen`.
    """
    script = (
        "mkdir -p run/checkpoints && mount -t tmpfs -o size=4m faults run/checkpoints || exit 99\n"
        f"(until [ -d run/checkpoints/{_FIRST} ]; do sleep 0.02; done\n"
        " head -c 100M /dev/zero > run/checkpoints/filled 2> /dev/null) &\n"
        '"$@"; code=$?; wait; cp -a run/checkpoints seen; exit $code'
    )
    own = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    return lambda workspace: [*own, *words(workspace)]


def _without_rights_of_root(words: Words) -> Words:
    """Return the command, for which the mode of a folder counts also as root."""
    own = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] * (os.geteuid() == 0)
    return lambda workspace: [*own[:2], *words(workspace)]


def _lock_folder(command: Command) -> None:
    folder = _checkpoints(command.workspace)
    if command.wait_until(lambda: (folder / _FIRST).exists()):
        folder.chmod(0o555)


def _locked_and_whole(workspace: Workspace, command: Command) -> str:
    _checkpoints(workspace).chmod(0o755)
    return _survived(_FIRST, reason="Permission denied")(workspace, command)


def _interrupted(workspace: Workspace) -> None:
    """Have a run in the workspace that has come to step 20 of 30, with two checkpoints."""
    with started(_saving(steps=20)(workspace), workspace) as command:
        command.ended_after(60)
    (workspace.folder / "run" / "results.json").unlink()


def _damaged(*names: str) -> Callable[[Workspace], None]:
    def prepare(workspace: Workspace) -> None:
        _interrupted(workspace)
        for name in names:
            path = _checkpoints(workspace) / name
            shutil.copy(path / "rank-00000.pt", path / "training.pt")

    return prepare


def _of_a_newer_version(workspace: Workspace) -> None:
    _interrupted(workspace)
    path = _checkpoints(workspace) / _SECOND / folders.MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": folders.FORMAT + 1}))


def _killed_in_a_write(workspace: Workspace) -> None:
    """Leave a run whose processes were killed while a checkpoint was written, after whole ones."""
    words = train("SLOW", "--checkpoint_every", "1", "--resume", "auto", steps=400)(workspace)
    folder = _checkpoints(workspace)
    for _ in range(10):
        with started(words, workspace) as command:
            command.wait_until(lambda: len(folders.newest_first(folder)) == 2)
            numbers = [process.pid for process in command.everything()]
            deadline = time.monotonic() + 30
            while not list(folder.glob(".step-*.tmp")) and time.monotonic() < deadline:
                time.sleep(0.001)
            for number in sorted(numbers, reverse=True):  # those that train were started last
                if psutil.pid_exists(number):
                    os.kill(number, signal.SIGKILL)
            command.ended_after(10)
        if list(folder.glob(".step-*.tmp")):
            return
    raise AssertionError("no kill came in the middle of a write")


def _gone_on(workspace: Workspace, command: Command) -> str:
    """Return what is wrong with a run that went on: unlike steps, or no word of it."""
    run_dir = workspace.folder / "run"
    steps = [json.loads(line)["step"] for line in (run_dir / "steps.jsonl").open()]
    if steps != list(range(1, len(steps) + 1)):
        return f"the log has the steps {steps}"
    if not json.loads((run_dir / "results.json").read_text())["interruptions"]:
        return "results.json tells of no interruption"
    newest = [path.name for path in folders.newest_first(_checkpoints(workspace))]
    return _survived(*newest)(workspace, command)


def checkpoints() -> Iterator[Row]:
    """Yield the rows."""
    failed = "could not be saved, and the training goes on: "
    yield Row(
        *(_KIND, "the disk is full while one is written"),
        _on_small_disk(_saving()),
        says=f"step 20 {failed}",
        there=("results.json",),
        check=_survived(_FIRST, folder="seen", reason="No space left on device"),
    )
    yield Row(
        *(_KIND, "their folder may not be written any more"),
        _without_rights_of_root(_saving()),
        _lock_folder,
        says=f"step 20 {failed}",
        there=("results.json",),
        check=_locked_and_whole,
    )
    yield Row(
        *(_KIND, "the newest is damaged, and --resume=auto"),
        _saving("--resume", "auto"),
        prepare=_damaged(_SECOND),
        says="training.pt has",
        there=(f"damaged-{_SECOND}", "results.json"),
        check=_gone_on,
        quick=True,
    )
    for name, option in (
        ("all are damaged, and --resume=auto", "auto"),
        ("the one that --resume names is damaged", f"run/{folders.CHECKPOINTS}/{_SECOND}"),
    ):
        yield Row(
            *(_KIND, name),
            _saving("--resume", option),
            prepare=_damaged(_FIRST, _SECOND),
            codes=(2,),
            says="is damaged: training.pt has",
            lines=1,
            absent=("results.json",),
        )
    yield Row(
        *(_KIND, "they are of another model"),
        train("PRINTS", "--checkpoint_every", "10", "--resume", "auto", steps=30),
        prepare=_interrupted,
        codes=(2,),
        says="is of another model",
        lines=1,
        absent=("results.json",),
        check=_survived(_FIRST, _SECOND),
    )
    yield Row(
        *(_KIND, "they are of a newer version"),
        _saving("--resume", "auto"),
        prepare=_of_a_newer_version,
        codes=(2,),
        says=f"has format {folders.FORMAT + 1}",
        lines=1,
        absent=("results.json",),
        check=_survived(_FIRST),
    )
    yield Row(
        *(_KIND, "a run is killed while one is written, and goes on"),
        train("SLOW", "--checkpoint_every", "5", "--resume", "auto", steps=60),
        prepare=_killed_in_a_write,
        says="resumed  from",
        there=("results.json",),
        check=_gone_on,
        quick=True,
    )
