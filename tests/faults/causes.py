"""Causes of faults, what a workspace is given before a command starts, and what is checked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from .commands import compare, train
from .driver import Cause
from .workspace import ROOT, Command, Workspace, started, workers

Prepare = Callable[[Workspace], None]
Check = Callable[[Workspace, Command], str]


# --------------------------------------------------------------------------------------------------
# Causes.


def send(number: int) -> Cause:
    """Return a cause that sends a signal to the command itself."""
    return lambda command: command.process.send_signal(number)


def to_rank(rank: int, number: int) -> Cause:
    return lambda command: os.kill(workers(command)[rank].pid, number)


def once_there_are_results(then: Cause) -> Cause:
    def cause(command: Command) -> None:
        if command.wait_until(lambda: any(command.workspace.folder.rglob("results.json"))):
            with contextlib.suppress(IndexError, ProcessLookupError, psutil.Error):  # it has ended
                then(command)

    return cause


def to_loader(number: int) -> Cause:
    def cause(command: Command) -> None:
        next(one for one in command.everything() if one.name() == "pt_data_worker").send_signal(
            number
        )

    return cause


def to_papermill(command: Command) -> None:
    words = ["-P", "-m", "papermill"]
    found = [one for one in command.everything() if one.cmdline()[1:4] == words]
    min(found, key=lambda process: process.create_time()).kill()


def two_runs(command: Command) -> None:
    """Start a second run with the same folder, which has to be refused, while the first works."""
    second_space = Workspace(command.workspace.folder / "second", command.workspace.cache)
    second_space.folder.mkdir()
    with started(train()(command.workspace), second_space) as second:
        second.ended_after(60)
        said = f"{second.process.returncode} {second.text()}"
    (command.workspace.folder / "second.txt").write_text(said)


def strangers(command: Command) -> None:
    """Connect strangers to the socket where turns are handed out: one silent, one with garbage."""
    import socket

    folder = Path("/dev/shm")
    if command.wait_until(lambda: any(folder.glob("gallery-sockets-*/turns"))):
        for path in folder.glob("gallery-sockets-*/turns"):
            silent, garbage = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            silent.connect(str(path))
            garbage.connect(str(path))
            garbage.sendall(b"\xff" * 64)
            time.sleep(0.2)
            garbage.close()


# --------------------------------------------------------------------------------------------------
# What a workspace is given before a command starts.


def fifo_among_images(workspace: Workspace) -> None:
    from PIL import Image

    for split in ("train", "val"):
        for name in ("one", "two"):
            (workspace.folder / "images" / split / name).mkdir(parents=True)
            Image.new("RGB", (64, 64)).save(workspace.folder / "images" / split / name / "0.jpg")
    os.mkfifo(workspace.folder / "images" / "train" / "one" / "1.jpg")


def damaged_text(workspace: Workspace) -> None:
    shutil.copytree(ROOT / ".cache" / "data" / "english", workspace.folder / "data")
    file = next((workspace.folder / "data").rglob("train.npy"))
    file.write_bytes(file.read_bytes()[:-100] + b"x" * 100)


def own_cache(workspace: Workspace) -> None:
    """Give the workspace a cache of its own, with what a compiled run and a comparison keep."""
    made = Path(tempfile.gettempdir()) / f"faults-cache-{os.getpid()}"
    if not made.exists():
        (made / "data").mkdir(parents=True)
        for number, words in enumerate((train("SLOW", "--compiler-opt", steps=6), compare())):
            earlier = Workspace(workspace.folder / f"before-{number}", made)
            earlier.folder.mkdir()
            with started(words(earlier), earlier) as command:
                command.ended_after(300)
    shutil.copytree(made, workspace.folder / "cache", symlinks=True)
    workspace.cache = workspace.folder / "cache"


def damaged(pattern: str, damage: Callable[[Path], object]) -> Prepare:
    def prepare(workspace: Workspace) -> None:
        own_cache(workspace)
        for file in sorted(path for path in workspace.cache.glob(pattern) if path.is_file()):
            damage(file)

    return prepare


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def open_to_others(workspace: Workspace) -> None:
    own_cache(workspace)
    (workspace.cache / "inductor").mkdir(exist_ok=True)
    (workspace.cache / "inductor").chmod(0o777)


def with_file(name: str, text: str) -> Prepare:
    def prepare(workspace: Workspace) -> None:
        (workspace.folder / name).parent.mkdir(exist_ok=True)
        (workspace.folder / name).write_text(text)

    return prepare


def latin(workspace: Workspace) -> None:
    workspace.environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    workspace.environment |= {"PYTHONIOENCODING": "latin-1"}


# --------------------------------------------------------------------------------------------------
# Checks.


def results(workspace: Workspace) -> dict:  # type: ignore[type-arg]
    return json.loads(next(workspace.folder.rglob("results.json")).read_text())


def diverged_at_5(workspace: Workspace, command: Command) -> str:
    at = results(workspace).get("diverged_at") or {}
    return "" if (at.get("step"), at.get("rank")) == (5, 0) else f"diverged_at is {at}"


def no_ratio(workspace: Workspace, command: Command) -> str:
    values = json.loads(next(workspace.folder.rglob("comparison.json")).read_text())
    if values["speedup"] is not None or values["parity"]["passed"]:
        return f"speedup {values['speedup']}, parity {values['parity']['passed']}"
    return "it prints a speed-up" if "× as fast" in command.result() else ""


def second_refused(workspace: Workspace, command: Command) -> str:
    text = (workspace.folder / "second.txt").read_text()
    right = text.startswith("2 ") and "another run is at work" in text
    return "" if right else f"the second: {text[-300:]}"


def no_escapes(workspace: Workspace, command: Command) -> str:
    from xml.etree import ElementTree

    shown = command.result() + command.text()
    if "\x1b[31m" in shown or "\x07" in shown:
        return "an escape sequence reaches the terminal"
    for file in workspace.folder.rglob("*.xml"):
        ElementTree.parse(file)
    return ""
