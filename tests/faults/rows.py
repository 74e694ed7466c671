"""Table of faults: how each is caused, and what must be seen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gallery_lib.checkpoint import folders, state
from gallery_lib.errors import InputError

from .commands import EVERY, Words, batch, compare, half, on, python, train
from .driver import (
    ROOT,
    TASKS,
    Cause,
    Command,
    Row,
    Workspace,
    started,
    workers,
)

TWO = ("--nproc_per_node", "2")
_OUTPUT = "output that cannot be written"


def send(number: int) -> Cause:
    """Return a cause that sends a signal to the command itself."""
    return lambda command: command.process.send_signal(number)


def to_rank(rank: int, number: int) -> Cause:
    return lambda command: os.kill(workers(command)[rank].pid, number)


def _to_loader(number: int) -> Cause:
    def cause(command: Command) -> None:
        loaders = (one for one in command.everything() if one.name() == "pt_data_worker")
        next(loaders).send_signal(number)

    return cause


def results(workspace: Workspace) -> dict:  # type: ignore[type-arg]
    return json.loads(next(workspace.folder.rglob("results.json")).read_text())


_NETWORK = tuple(
    Row(
        *("open to the network", f"{name}: no port", words),
        seconds=300,
        lines=99,
        codes=(0, 1),
        quick=name == "train",
    )
    for name, words in EVERY.items()
)


# --------------------------------------------------------------------------------------------------
# What a run says of itself


def _diverged_at_5(workspace: Workspace, command: Command) -> str:
    at = results(workspace).get("diverged_at") or {}
    return "" if (at.get("step"), at.get("rank")) == (5, 0) else f"diverged_at is {at}"


def _no_ratio(workspace: Workspace, command: Command) -> str:
    values = json.loads(next(workspace.folder.rglob("comparison.json")).read_text())
    if values["speedup"] is not None or values["parity"]["passed"]:
        return f"speedup {values['speedup']}, parity {values['parity']['passed']}"
    return "it prints a speed-up" if "× as fast" in command.stdout() else ""


def _with_small_files(words: Words) -> Words:
    shell = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash"]
    return lambda workspace: [*shell, *words(workspace)]


_SAID = (
    Row(
        *("a run that diverged", "training", train("DIVERGES", steps=20)),
        codes=(1,),
        says="its loss is no finite number from step 5 on rank 0 on",
        check=_diverged_at_5,
        quick=True,
    ),
    Row(
        *("a run that diverged", "a comparison, accelerated only", compare("DIVERGES_ACCELERATED")),
        codes=(0, 1),
        says="not comparable",
        check=_no_ratio,
        seconds=300,
    ),
    Row(_OUTPUT, "train, head", train(steps=6), codes=(0, 141), output="head", quick=True),
    Row(_OUTPUT, "train, full", train(steps=6), codes=(1,), output="full"),
    Row(_OUTPUT, "bytes that are no text", train("PRINTS", steps=6), there=("results.json",)),
    Row(
        *(_OUTPUT, "ulimit -f 8", _with_small_files(train("SLOW", "--workers", "0"))),
        says="cannot be written to",
        there=("results.json",),
        quick=True,
    ),
)


# --------------------------------------------------------------------------------------------------
# Signals


_ENDED = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143, -signal.SIGTERM)}
_SIGNALS = (
    *(
        Row(
            *("signals", f"{number.name} in training", train()),
            send(number),
            at_step=3,
            codes=codes,
            seconds=12,
            quick=True,
        )
        for number, codes in _ENDED.items()
    ),
    *(
        Row(
            *("signals", f"{number.name} after 4 s: {name}", EVERY[name]),
            send(number),
            at_second=4,
            # A batch says by its report which signal it was.
            codes=(*codes, 0, *(_ENDED[signal.SIGINT] if name == "run a notebook" else ())),
            seconds=15,
        )
        for number, codes in _ENDED.items()
        for name in ("compare", "run a notebook", "make images", "train on two processes")
    ),
    Row(
        *("signals", "SIGKILL in training", train("SLOW", *TWO, steps=400)),
        send(signal.SIGKILL),
        at_step=3,
        codes=(-signal.SIGKILL,),
        absent=("results.json",),
        seconds=10,
        lines=99,
        quick=True,
    ),
    Row(
        *("signals", "a script on two processes is interrupted"),
        EVERY["run a script on two processes"],
        send(signal.SIGINT),
        at_second=6,
        codes=(1, 130, -2),
        lines=99,
    ),
)


def _to_papermill(command: Command) -> None:
    words = ["-P", "-m", "papermill"]
    found = (one for one in command.everything() if one.cmdline()[1:4] == words)
    min(found, key=lambda process: process.create_time()).kill()


def _failed(
    name: str, cause: Cause, says: str, *more: str, seconds: float = 10, quick: bool = False
) -> Row:
    return Row(
        *("who failed", name, train("SLOW", *more, steps=400), cause),
        at_step=3,
        codes=(1,),
        says=says,
        seconds=seconds,
        quick=quick,
    )


_WHO_FAILED = (
    _failed("rank 0 is killed", to_rank(0, signal.SIGKILL), "rank 0 (process", *TWO),
    _failed("rank 1 is killed", to_rank(1, signal.SIGKILL), "rank 1 (process", *TWO, quick=True),
    _failed(
        *("a process that loads data is killed", _to_loader(signal.SIGKILL), "DataLoader"),
        seconds=15,
    ),
    _failed(
        *("a process that loads data is stopped", _to_loader(signal.SIGSTOP), "no batch has come"),
        *("--rank_timeout", "8"),
        seconds=25,
        quick=True,
    ),
    _failed(
        *("a rank is stopped", to_rank(1, signal.SIGSTOP), "rank 1 gives no sign of life"),
        *(*TWO, "--rank_timeout", "8"),
        seconds=25,
    ),
    Row(
        *("who failed", "a rank is stopped after its last step"),
        train("STOPS_AT_ITS_END", *TWO, "--rank_timeout", "8", steps=6),
        at_step=6,
        codes=(1,),
        says="rank 0 gives no sign of life",
        seconds=25,
    ),
    Row(
        *("who failed", "papermill is killed", batch(), _to_papermill),
        at_second=8,
        codes=(1,),
        says="SIGKILL",
        lines=30,
        seconds=20,
    ),
)


# --------------------------------------------------------------------------------------------------
# Files


_COMPILED = train("SLOW", "--compiler-opt", steps=6)


def _own_cache(workspace: Workspace) -> None:
    """Give the workspace a cache of its own, with what a compiled run keeps."""
    workspace.cache = workspace.folder / "cache"
    (workspace.cache / "data").mkdir(parents=True)
    earlier = Workspace(workspace.folder / "before", workspace.cache)
    earlier.folder.mkdir()
    with started(_COMPILED(earlier), earlier) as command:
        command.ended_after(300)


def _damaged_cache(workspace: Workspace) -> None:
    _own_cache(workspace)
    for file in filter(Path.is_file, workspace.cache.glob("inductor/**/*")):
        file.write_bytes(os.urandom(200))


def _open_to_others(workspace: Workspace) -> None:
    _own_cache(workspace)
    (workspace.cache / "inductor").mkdir(exist_ok=True)
    (workspace.cache / "inductor").chmod(0o777)


def _precious(workspace: Workspace) -> None:
    (workspace.folder / "run").mkdir()
    (workspace.folder / "run" / "thesis.tex").write_text("precious")


def _no_escapes(workspace: Workspace, command: Command) -> str:
    shown = command.stdout() + command.stderr()
    if "\x1b[31m" in shown or "\x07" in shown:
        return "an escape sequence reaches the terminal"
    for file in workspace.folder.rglob("*.xml"):
        ElementTree.parse(file)
    return ""


def _refused(name: str, words: Words, says: str, **more: Any) -> Row:
    return Row("files and values that are refused", name, words, codes=(2,), says=says, **more)


_INFINITE = python(str(ROOT / "launch_single_task.py"), f"--model={TASKS}:SLOW", "--lr=inf")
_NO_NOTEBOOK = ["bash", str(ROOT / "prepare.sh"), "--run", ""]
_FILES = (
    Row(
        *("files", "kept compiled code is damaged", _COMPILED),
        says="is made anew",
        prepare=_damaged_cache,
        seconds=300,
        lines=20,
        there=("*.damaged", "results.json"),
    ),
    Row(
        *("files", "a notebook's error has escape sequences"),
        batch("raise ValueError('\\x1b[31mred\\x1b]0;title\\x07 \\x00')"),
        codes=(1,),
        lines=30,
        check=_no_escapes,
    ),
    _refused(
        *("others may write to compiled code", _COMPILED, "chmod -R go-w"), prepare=_open_to_others
    ),
    _refused("a comparison cut in half", on(half, "show"), "is no JSON", quick=True),
    _refused(
        *("run_dir holds files of others", train(), "thesis.tex"),
        prepare=_precious,
        absent=("config.json",),
        quick=True,
    ),
    _refused("lr is inf", lambda _: _INFINITE, "lr='inf' must be", quick=True),
    _refused(
        *("prepare.sh --run ''", lambda _: _NO_NOTEBOOK, "--run '': no such notebook"), quick=True
    ),
)


# --------------------------------------------------------------------------------------------------
# Checkpoints: what cannot be written, what is damaged, and a kill in a write


_FIRST, _SECOND = "step-00000010.pt", "step-00000020.pt"


def _saving(*more: str, steps: int = 30) -> Words:
    return train("SLOW", "--checkpoint_every", "10", *more, steps=steps)


def _checkpoints(workspace: Workspace) -> Path:
    return workspace.folder / "run" / folders.CHECKPOINTS


def _whole(folder: Path, *names: str) -> str:
    """Return what is wrong with the checkpoints of these names, or ""; nothing else may be left."""
    try:
        for name in names:
            state.read(folder / name)
    except InputError as error:
        return str(error)
    left = [path.name for path in folder.glob(".*.tmp")]
    return f"{left} is left" if left else ""


def _on_small_disk(words: Words) -> Words:
    """Return the command with its checkpoints on a disk that is full after the first of them.

    The disk is one of a mount namespace, so it is gone with the command. Its checkpoints are copied
    to the folder `seen`.
    """
    script = (
        "mkdir -p run/checkpoints && mount -t tmpfs -o size=4m faults run/checkpoints || exit 99\n"
        f"(until [ -f run/checkpoints/{_FIRST} ]; do sleep 0.02; done\n"
        " head -c 100M /dev/zero > run/checkpoints/filled 2> /dev/null) &\n"
        '"$@"; code=$?; wait; cp -a run/checkpoints seen; exit $code'
    )
    own = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    return lambda workspace: [*own, *words(workspace)]


def _damaged_newest(workspace: Workspace) -> None:
    """Have a run in the workspace that has come to step 20 of 30, with a damaged checkpoint."""
    with started(_saving(steps=20)(workspace), workspace) as command:
        command.ended_after(60)
    (workspace.folder / "run" / "results.json").unlink()
    path = _checkpoints(workspace) / _SECOND
    os.truncate(path, path.stat().st_size // 2)


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
                with contextlib.suppress(ProcessLookupError):
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
    if not results(workspace)["interruptions"]:
        return "results.json tells of no interruption"
    folder = _checkpoints(workspace)
    return _whole(folder, *(path.name for path in folders.newest_first(folder)))


def _first_is_whole_and_the_disk_full(workspace: Workspace, command: Command) -> str:
    reason = "" if "No space left on device" in command.stdout() else "it gives no reason"
    return _whole(workspace.folder / "seen", _FIRST) or reason


_CHECKPOINTS = (
    Row(
        *("checkpoints", "the disk is full while one is written", _on_small_disk(_saving())),
        says="step 20 could not be saved, and the training goes on: ",
        there=("results.json",),
        check=_first_is_whole_and_the_disk_full,
    ),
    Row(
        *("checkpoints", "the newest is damaged, and --resume=auto", _saving("--resume", "auto")),
        prepare=_damaged_newest,
        codes=(2,),
        says=f"{_SECOND} cannot be read: ",
        lines=1,
        there=(_SECOND,),
        absent=("results.json",),
        check=lambda workspace, command: _whole(_checkpoints(workspace), _FIRST),
        quick=True,
    ),
    Row(
        *("checkpoints", "a run is killed while one is written, and goes on"),
        train("SLOW", "--checkpoint_every", "5", "--resume", "auto", steps=60),
        prepare=_killed_in_a_write,
        says="resumed  from",
        there=("results.json",),
        check=_gone_on,
        quick=True,
    ),
)

ROWS = (*_NETWORK, *_SAID, *_SIGNALS, *_WHO_FAILED, *_FILES, *_CHECKPOINTS)
