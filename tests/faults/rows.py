"""Table of faults: how each is caused, and what must be seen."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from gallery_lib.checkpoint import folders, state
from gallery_lib.errors import InputError

from .commands import EVERY, Words, batch, compare, data, half, on, python, train
from .driver import Cause, Row, after, wait_for_steps
from .workspace import ROOT, TASKS, Command, Workspace, started, workers

INTERRUPTED, TERMINATED = (130, -signal.SIGINT), (143, -signal.SIGTERM)
TWO = ("--nproc_per_node", "2")


def send(number: int) -> Cause:
    """Return a cause that sends a signal to the command itself."""
    return lambda command: command.process.send_signal(number)


def to_rank(rank: int, number: int) -> Cause:
    return lambda command: os.kill(workers(command)[rank].pid, number)


def to_loader(number: int) -> Cause:
    def cause(command: Command) -> None:
        loaders = (one for one in command.everything() if one.name() == "pt_data_worker")
        next(loaders).send_signal(number)

    return cause


def results(workspace: Workspace) -> dict:  # type: ignore[type-arg]
    return json.loads(next(workspace.folder.rglob("results.json")).read_text())


# --------------------------------------------------------------------------------------------------
# Ports


def _network() -> Iterator[Row]:
    kind = "open to the network"
    for name, words in EVERY.items():
        one = f"{name}: no port"
        yield Row(kind, one, words, seconds=300, lines=99, codes=(0, 1), quick=name == "train")


# --------------------------------------------------------------------------------------------------
# What a run says of itself


def _diverged_at_5(workspace: Workspace, command: Command) -> str:
    at = results(workspace).get("diverged_at") or {}
    return "" if (at.get("step"), at.get("rank")) == (5, 0) else f"diverged_at is {at}"


def _no_ratio(workspace: Workspace, command: Command) -> str:
    values = json.loads(next(workspace.folder.rglob("comparison.json")).read_text())
    if values["speedup"] is not None or values["parity"]["passed"]:
        return f"speedup {values['speedup']}, parity {values['parity']['passed']}"
    return "it prints a speed-up" if "× as fast" in command.result() else ""


def _divergence() -> Iterator[Row]:
    kind = "a run that diverged"
    yield Row(
        *(kind, "training", train("DIVERGES", steps=20)),
        codes=(1,),
        says="its loss is no finite number from step 5 on rank 0 on",
        check=_diverged_at_5,
        quick=True,
    )
    yield Row(
        *(kind, "a comparison, accelerated only", compare("DIVERGES_ACCELERATED")),
        codes=(0, 1),
        says="not comparable",
        check=_no_ratio,
        seconds=300,
    )


def _outputs() -> Iterator[Row]:
    kind = "output that cannot be written"
    for output, codes in {"head": (0, 141), "full": (1,)}.items():
        name, is_quick = f"train, {output}", output == "head"
        yield Row(kind, name, train(steps=6), codes=codes, output=output, quick=is_quick)
    yield Row(*(kind, "bytes that are no text", train("PRINTS", steps=6)), there=("results.json",))
    shell = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash"]
    limited = train("SLOW", "--workers", "0")
    yield Row(
        *(kind, "ulimit -f 8", lambda workspace: [*shell, *limited(workspace)]),
        says="cannot be written to",
        there=("results.json",),
        quick=True,
    )


# --------------------------------------------------------------------------------------------------
# Signals


def _signals() -> Iterator[Row]:
    for number, codes in {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}.items():
        yield Row(
            *("signals", f"{number.name} in training", train()),
            wait_for_steps(3, send(number)),
            codes,
            seconds=12,
            quick=True,
        )
        for name in ("compare", "run a notebook", "make images", "train on two processes"):
            yield Row(
                *("signals", f"{number.name} after 4 s: {name}", EVERY[name]),
                after(4.0, send(number)),
                # A batch says by its report which signal it was.
                (*codes, 0, *(INTERRUPTED if name == "run a notebook" else ())),
                seconds=15,
            )
    yield Row(
        *("signals", "SIGKILL in training", train()),
        wait_for_steps(3, send(signal.SIGKILL)),
        (-signal.SIGKILL,),
        seconds=15,
        lines=99,
    )
    name = "run a script on two processes"
    yield Row(
        *("signals", "a script on two processes is interrupted", EVERY[name]),
        after(6.0, send(signal.SIGINT)),
        (1, 130, -2),
        lines=99,
    )


def _to_papermill(command: Command) -> None:
    words = ["-P", "-m", "papermill"]
    found = [one for one in command.everything() if one.cmdline()[1:4] == words]
    min(found, key=lambda process: process.create_time()).kill()


def _who_failed() -> Iterator[Row]:
    limited = ("--rank_timeout", "8")
    for name, more, cause, says, seconds in (
        ("rank 0 is killed", TWO, to_rank(0, signal.SIGKILL), "rank 0 (process", 10),
        ("rank 1 is killed", TWO, to_rank(1, signal.SIGKILL), "rank 1 (process", 10),
        ("a process that loads data is killed", (), to_loader(signal.SIGKILL), "DataLoader", 15),
        (
            *("a rank is stopped", (*TWO, *limited), to_rank(1, signal.SIGSTOP)),
            *("rank 1 gives no sign of life", 25),
        ),
    ):
        words = train("SLOW", *more, steps=400)
        yield Row("who failed", name, words, wait_for_steps(3, cause), (1,), says, 3, seconds)
    yield Row(
        *("who failed", "a rank is stopped after its last step"),
        train("STOPS_AT_ITS_END", *TWO, *limited, steps=6),
        wait_for_steps(6, lambda command: None),
        (1,),
        "rank 0 gives no sign of life",
        lines=3,
        seconds=25,
    )
    name, cause = "papermill is killed", after(8.0, _to_papermill)
    yield Row("who failed", name, batch(), cause, (1,), "SIGKILL", lines=30, seconds=20)


# --------------------------------------------------------------------------------------------------
# Files


def _own_cache(workspace: Workspace) -> None:
    """Give the workspace a cache of its own, with what a compiled run keeps."""
    workspace.cache = workspace.folder / "cache"
    (workspace.cache / "data").mkdir(parents=True)
    earlier = Workspace(workspace.folder / "before", workspace.cache)
    earlier.folder.mkdir()
    with started(train("SLOW", "--compiler-opt", steps=6)(earlier), earlier) as command:
        command.ended_after(300)


def _damaged_cache(workspace: Workspace) -> None:
    _own_cache(workspace)
    for file in workspace.cache.glob("inductor/**/*"):
        if file.is_file():
            file.write_bytes(os.urandom(200))


def _open_to_others(workspace: Workspace) -> None:
    _own_cache(workspace)
    (workspace.cache / "inductor").mkdir(exist_ok=True)
    (workspace.cache / "inductor").chmod(0o777)


def _damaged_text(workspace: Workspace) -> None:
    shutil.copytree(ROOT / ".cache" / "data" / "english", workspace.folder / "data")
    file = next((workspace.folder / "data").rglob("train.npy"))
    file.write_bytes(file.read_bytes()[:-100] + b"x" * 100)


def _precious(workspace: Workspace) -> None:
    (workspace.folder / "run").mkdir()
    (workspace.folder / "run" / "thesis.tex").write_text("precious")


def _no_escapes(workspace: Workspace, command: Command) -> str:
    shown = command.result() + command.text()
    if "\x1b[31m" in shown or "\x07" in shown:
        return "an escape sequence reaches the terminal"
    for file in workspace.folder.rglob("*.xml"):
        ElementTree.parse(file)
    return ""


def _files() -> Iterator[Row]:
    kind, compiled = "files", train("SLOW", "--compiler-opt", steps=6)
    yield Row(
        *(kind, "kept compiled code is damaged", compiled),
        says="is made anew",
        prepare=_damaged_cache,
        seconds=300,
        lines=20,
        there=("*.damaged", "results.json"),
    )
    yield Row(
        *(kind, "a notebook's error has escape sequences"),
        batch("raise ValueError('\\x1b[31mred\\x1b]0;title\\x07 \\x00')"),
        codes=(1,),
        lines=30,
        check=_no_escapes,
    )
    infinite = [str(ROOT / "launch_single_task.py"), f"--model={TASKS}:SLOW", "--lr=inf"]
    refused: tuple[tuple[str, Words, str, Callable[[Workspace], None] | None, bool], ...] = (
        ("others may write to compiled code", compiled, "chmod -R go-w", _open_to_others, False),
        ("a comparison cut in half", on(half, "show"), "is no JSON", None, True),
        ("damaged text data", data("text.py"), "is damaged", _damaged_text, False),
        ("run_dir holds files of others", train(), "thesis.tex", _precious, True),
        ("lr is inf", lambda workspace: python(*infinite), "lr='inf' must be", None, True),
        (
            *("prepare.sh --run ''", lambda _: ["bash", str(ROOT / "prepare.sh"), "--run", ""]),
            *("--run '': no such notebook", None, True),
        ),
    )
    for name, words, says, prepare, quick in refused:
        yield Row(
            *(f"{kind} and values that are refused", name, words),
            codes=(2,),
            says=says,
            prepare=prepare,
            absent=("config.json",) if prepare is _precious else (),
            quick=quick,
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
    if left := [path.name for path in folder.glob(".*.tmp")]:
        return f"{left} is left"
    try:
        for name in names:
            state.read(folder / name)
    except InputError as error:
        return str(error)
    return ""


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


def _checkpoint_rows() -> Iterator[Row]:
    kind = "checkpoints"
    yield Row(
        *(kind, "the disk is full while one is written", _on_small_disk(_saving())),
        says="step 20 could not be saved, and the training goes on: ",
        there=("results.json",),
        check=lambda workspace, command: (
            _whole(workspace.folder / "seen", _FIRST)
            or ("" if "No space left on device" in command.result() else "it gives no reason")
        ),
    )
    yield Row(
        *(kind, "the newest is damaged, and --resume=auto", _saving("--resume", "auto")),
        prepare=_damaged_newest,
        codes=(2,),
        says=f"{_SECOND} cannot be read: ",
        lines=1,
        there=(_SECOND,),
        absent=("results.json",),
        check=lambda workspace, command: _whole(_checkpoints(workspace), _FIRST),
        quick=True,
    )
    yield Row(
        *(kind, "a run is killed while one is written, and goes on"),
        train("SLOW", "--checkpoint_every", "5", "--resume", "auto", steps=60),
        prepare=_killed_in_a_write,
        says="resumed  from",
        there=("results.json",),
        check=_gone_on,
        quick=True,
    )


ROWS = (
    *(*_network(), *_divergence(), *_outputs(), *_signals(), *_who_failed()),
    *(*_files(), *_checkpoint_rows()),
)
