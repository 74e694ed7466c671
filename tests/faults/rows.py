"""Table of faults: how each is caused, and what must be seen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from .checkpoint_rows import checkpoints
from .commands import EVERY, batch, compare, comparison, data, foreign, half, on, plot, train
from .driver import Cause, Row, after, wait_for_steps
from .limit_rows import limits
from .preparations import (
    damaged_inductor,
    damaged_library,
    damaged_reference,
    damaged_text,
    fifo_among_images,
    fifo_as_manifest,
    jumping_clock,
    open_to_others,
)
from .workspace import ROOT, Command, Workspace, python, workers
from .wrong_values import wrong_values

INTERRUPTED, TERMINATED = (130, -signal.SIGINT), (143, -signal.SIGTERM)


def send(number: int) -> Cause:
    """Return a cause that sends a signal to the command itself."""
    return lambda command: command.process.send_signal(number)


def _to_rank(rank: int, number: int) -> Cause:
    def cause(command: Command) -> None:
        os.kill(workers(command)[rank].pid, number)

    return cause


def _once_there_are_results(then: Cause) -> Cause:
    def cause(command: Command) -> None:
        if command.wait_until(lambda: any(command.workspace.folder.rglob("results.json"))):
            with contextlib.suppress(IndexError, ProcessLookupError, psutil.Error):  # it has ended
                then(command)

    return cause


def _to_loader(number: int) -> Cause:
    def cause(command: Command) -> None:
        loaders = [one for one in command.everything() if one.name() == "pt_data_worker"]
        loaders[0].send_signal(number)

    return cause


def _to(part: str, number: int) -> Cause:
    """Return a cause that signals the oldest process that runs the module `part` (`-m part`)."""

    def cause(command: Command) -> None:
        found = [
            process
            for process in command.everything()
            if process.cmdline()[1:4] == ["-P", "-m", part]
        ]
        os.kill(min(found, key=lambda process: process.create_time()).pid, number)

    return cause


def _results(workspace: Workspace) -> dict:  # type: ignore[type-arg]
    return json.loads(next(workspace.folder.rglob("results.json")).read_text())


def _diverged_at_5(workspace: Workspace, command: Command) -> str:
    at = _results(workspace).get("diverged_at") or {}
    return "" if (at.get("step"), at.get("rank")) == (5, 0) else f"diverged_at is {at}"


def _no_ratio(workspace: Workspace, command: Command) -> str:
    values = json.loads(next(workspace.folder.rglob("comparison.json")).read_text())
    if values["speedup"] is not None or values["parity"]["passed"]:
        return f"speedup {values['speedup']}, parity {values['parity']['passed']}"
    return "it prints a speed-up" if "× as fast" in command.result() else ""


def _positive_start_up(workspace: Workspace, command: Command) -> str:
    total = _results(workspace)["startup_seconds"]["total"]
    return "" if 0 < total < 120 else f"start-up of {total} s"


def _finished(workspace: Workspace, command: Command) -> str:
    return "" if _results(workspace)["status"] == "finished" else "not finished"


def _jump(command: Command) -> None:
    (command.workspace.folder / "jump").touch()


def _two_runs(command: Command) -> None:
    """Start a second run with the same folder while the first is at work.

    The second has to be refused, and the first goes on.
    """
    from .workspace import Command as Another

    words = train()(command.workspace)
    second_space = Workspace(command.workspace.folder / "second", command.workspace.cache)
    second_space.folder.mkdir()
    second = Another(words, second_space)
    second.ended_after(60)
    (command.workspace.folder / "second.txt").write_text(
        f"{second.process.returncode} {second.text()}"
    )
    second.end()


def _second_refused(workspace: Workspace, command: Command) -> str:
    text = (workspace.folder / "second.txt").read_text()
    return (
        ""
        if text.startswith("2 ") and "another run is at work" in text
        else f"the second: {text[-300:]}"
    )


def _strangers(command: Command) -> None:
    """Connect strangers to the socket where turns are handed out: one silent, one with garbage."""
    import socket
    import time

    folder = Path("/dev/shm")
    if command.wait_until(lambda: any(folder.glob("gallery-sockets-*/turns"))):
        for path in folder.glob("gallery-sockets-*/turns"):
            silent, garbage = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
            silent.connect(str(path))
            garbage.connect(str(path))
            garbage.sendall(b"\xff" * 64)
            time.sleep(0.2)
            garbage.close()


def _faults() -> Iterator[Row]:
    for name, words in EVERY.items():
        yield Row(
            "open to the network",
            f"{name}: no port",
            words,
            seconds=300,
            lines=99,
            codes=(0, 1),
            quick=name == "train",
        )
    yield Row(
        "open to the network",
        "strangers where turns are handed out",
        compare(),
        _strangers,
        seconds=300,
        says="same training",
    )

    yield Row(
        *("a run that diverged", "training"),
        train("DIVERGES", steps=20),
        codes=(1,),
        says="its loss is no finite number from step 5 on rank 0 on",
        check=_diverged_at_5,
        quick=True,
    )
    yield Row(
        "a run that diverged",
        "training that goes on",
        train("DIVERGES", "--no-terminate-on-nan", steps=20),
        check=_diverged_at_5,
    )
    yield Row(
        *("a run that diverged", "a comparison, accelerated only"),
        compare("DIVERGES_ACCELERATED"),
        codes=(0, 1),
        says="not comparable",
        check=_no_ratio,
        seconds=300,
    )
    yield Row(
        "a run that diverged",
        "a comparison, both",
        compare("DIVERGES"),
        codes=(0, 1),
        says="not comparable",
        check=_no_ratio,
        seconds=300,
    )

    for output, codes in {"head": (0, 141), "full": (1,), "closed": (0,)}.items():
        yield Row(
            "output that cannot be written",
            f"train, {output}",
            train(steps=6),
            codes=codes,
            output=output,
            quick=output == "head",
        )
        for name in ("list", "show"):
            yield Row(
                "output that cannot be written",
                f"{name}, {output}",
                EVERY[name],
                codes=codes,
                output=output,
            )
        yield Row(
            "output that cannot be written",
            f"compare, {output}",
            compare(),
            codes=codes,
            output=output,
            seconds=300,
        )
    yield Row(
        "output that cannot be written",
        "bytes that are no text",
        train("PRINTS", steps=6),
        there=("results.json",),
        check=_finished,
    )
    for locale in ("C", "en_US.ISO-8859-1"):
        for name in ("list", "show"):
            yield Row(
                "output that cannot be written",
                f"{name}, LC_ALL={locale}",
                EVERY[name],
                prepare=_locale(locale),
            )

    for number, codes in {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}.items():
        yield Row(
            "signals",
            f"{number.name} in training",
            train(),
            wait_for_steps(3, send(number)),
            codes,
            seconds=12,
            quick=True,
        )
        for name in ("compare", "run a notebook", "make images", "train on two processes"):
            # A batch says by its report which signal it was.
            right = (
                *codes,
                0,
                *(INTERRUPTED if name == "run a notebook" else ()),
            )
            yield Row(
                "signals",
                f"{number.name} after 4 s: {name}",
                EVERY[name],
                after(4.0, send(number)),
                right,
                seconds=15,
            )
    for number in (signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT):
        yield Row(
            "signals",
            f"{number.name} in training",
            train(),
            wait_for_steps(3, send(number)),
            (-number,),
            seconds=15,
            lines=99,
        )

    two = train("SLOW", "--nproc_per_node", "2", steps=400)
    for rank in (0, 1):
        says = f"rank {rank} (process"
        yield Row(
            "who failed",
            f"rank {rank} is killed",
            two,
            wait_for_steps(3, _to_rank(rank, signal.SIGKILL)),
            (1,),
            says,
            seconds=10,
        )
    yield Row(
        *("who failed", "a process that loads data is killed"),
        train("SLOW", steps=400),
        wait_for_steps(3, _to_loader(signal.SIGKILL)),
        (1,),
        "which loads data, was killed by SIGKILL",
        seconds=15,
    )
    yield Row(
        *("who failed", "a rank is killed while it waits for the others to end"),
        train("SLOW", "--nproc_per_node", "2", steps=8),
        _once_there_are_results(_to_rank(1, signal.SIGKILL)),
        (0, 1),
        seconds=20,
    )
    yield Row(
        *("who failed", "a rank is stopped"),
        train("SLOW", "--nproc_per_node", "2", "--rank_timeout", "8", steps=400),
        wait_for_steps(3, _to_rank(1, signal.SIGSTOP)),
        (1,),
        "rank 1 gives no sign of life",
        seconds=25,
    )
    yield Row(
        "who failed",
        "papermill is killed",
        batch(),
        after(8.0, _to("papermill", signal.SIGKILL)),
        (1,),
        "SIGKILL",
        seconds=20,
        lines=30,
    )

    yield from limits(_to_loader(signal.SIGSTOP))

    compiled, compared, aside = train("SLOW", "--compiler-opt", steps=6), compare(), ("*.damaged",)
    for name, prepare, words, says in (
        ("files of the compiler are damaged", damaged_inductor, compiled, "is made anew"),
        ("C++ of ours is cut off", damaged_library, compiled, ""),
        ("a reference is another's", damaged_reference, compared, "same training"),
    ):
        yield Row(
            "caches",
            name,
            words,
            says=says,
            prepare=prepare,
            seconds=300,
            lines=20,
            there=(*aside, "results.json"),
        )
    yield Row(
        "caches",
        "others may write into the compiler's",
        compiled,
        prepare=open_to_others,
        codes=(2,),
        says="chmod -R go-w",
    )

    yield Row(
        "files of others",
        "a comparison cut in half",
        on(half, "show"),
        codes=(2,),
        says="is no JSON",
        quick=True,
    )
    for name, content in {
        "results.json": [1, 2],
        "comparison.json": {"task": 5},
        "report.json": {"schema": 1, "notebooks": []},
    }.items():
        yield Row(
            "files of others",
            f"{name} of something else",
            on(foreign(name, content), "show"),
            codes=(2,),
            says=name,
        )
    name = "a comparison without its runs is drawn"
    yield Row(
        "files of others", name, plot(comparison), codes=(2,), says="has no steps.jsonl", quick=True
    )
    source = (
        "import json, os, pathlib\n"
        "folder = pathlib.Path(os.environ['GALLERY_RUNS_DIR']) / 'mine'\n"
        "folder.mkdir(parents=True)\n"
    )
    yield Row(
        "files of others",
        "a notebook leaves a list as config.json",
        batch(f"{source}(folder / 'config.json').write_text('[1, 2]')"),
    )
    yield Row(
        *("files of others", "a notebook leaves half a comparison"),
        batch(f"{source}(folder / 'comparison.json').write_text('{{')"),
        codes=(1,),
        says="comparison that cannot be read",
        lines=30,
        there=("report.json",),
    )
    yield Row(
        *("files of others", "a notebook's error has escape sequences"),
        batch("raise ValueError('\\x1b[31mred\\x1b]0;title\\x07 \\x00')"),
        codes=(1,),
        lines=30,
        check=_no_escapes,
    )
    yield Row(
        *("files of others", "a pipe among images"),
        lambda workspace: python(
            str(ROOT / "data_prep" / "check_imagenet.py"), str(workspace.folder / "images")
        ),
        prepare=fifo_among_images,
        says="a pipe",
    )
    yield Row(
        *("files of others", "a pipe as a manifest"),
        lambda workspace: python(
            str(ROOT / "data_prep" / "check_features.py"),
            str(workspace.folder / "features"),
            "--task",
            "tts_angular",
        ),
        prepare=fifo_as_manifest,
        codes=(2,),
        says="has neither manifest.tsv nor",
    )
    yield Row(
        "files of others",
        "damaged text data",
        data("text.py"),
        prepare=damaged_text,
        codes=(2,),
        says="is damaged",
    )

    yield Row(
        *("folders and values", "two runs with one folder"),
        train(),
        wait_for_steps(3, _two_runs),
        there=("results.json",),
        check=_second_refused,
        seconds=90,
    )
    yield Row(
        *("clocks", "the wall clock is set back by a day"),
        train(steps=20),
        after(1.0, _jump),
        prepare=jumping_clock,
        check=_positive_start_up,
    )
    yield Row(
        "signals",
        "a script on two processes is interrupted",
        EVERY["run a script on two processes"],
        after(6.0, send(signal.SIGINT)),
        (1, 130, -2),
        lines=99,
    )
    yield from wrong_values()
    yield from checkpoints()


def _locale(name: str) -> object:
    def prepare(workspace: Workspace) -> None:
        workspace.environment |= {"LC_ALL": name, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        if name != "C":
            workspace.environment |= {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}

    return prepare


def _no_escapes(workspace: Workspace, command: Command) -> str:
    from xml.etree import ElementTree

    if (
        "\x1b[31m" in command.result() + command.text()
        or "\x07" in command.result() + command.text()
    ):
        return "an escape sequence reaches the terminal"
    for file in workspace.folder.rglob("*.xml"):
        ElementTree.parse(file)
    return ""


ROWS = tuple(_faults())

SWEPT = ("train", "compare", "make images", "doctor", "list")


def sweep(step_seconds: float, end_seconds: float) -> Iterator[Row]:
    """Yield rows that send signals to commands in steps, from their start on.

    No signal may be lost while libraries are imported.
    """
    for name in SWEPT:
        for number, codes in {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}.items():
            for place in range(1, int(end_seconds / step_seconds) + 1):
                moment = place * step_seconds
                yield Row(
                    "signals",
                    f"{number.name} after {moment:.2f} s: {name}",
                    EVERY[name],
                    after(moment, send(number)),
                    (*codes, 0),
                    seconds=14,
                    starting=True,
                )
