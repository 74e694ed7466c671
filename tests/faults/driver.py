"""Driver for a row of the table: prepare, start, cause the fault, wait, and check what is seen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .workspace import Command, Workspace, started

Cause = Callable[[Command], None]


@dataclass(frozen=True)
class Row:
    """A fault, how it is caused, and what must be seen."""

    kind: str  # a heading of the table
    name: str
    words: Callable[[Workspace], list[str]]  # the command, in a workspace that is ready
    cause: Cause | None = None  # what is done to the command while it runs
    codes: tuple[int, ...] = (0,)  # exit codes that are right
    says: str = ""  # a part of what must be said on standard error, or printed
    lines: int = 3  # largest number of lines of the message
    seconds: float = 60.0  # longest time from the cause until no process is left
    prepare: Callable[[Workspace], None] | None = None
    there: tuple[str, ...] = ()  # patterns of files that must be in the workspace afterwards
    absent: tuple[str, ...] = ()  # and of those that must not
    output: str = "file"  # where standard output goes (`workspace.Command`)
    check: Callable[[Workspace, Command], str] | None = None  # returns what is wrong, or ""
    quick: bool = False  # whether the row is an ordinary test as well


@dataclass(frozen=True)
class Seen:
    """Outcome of a row; `wrong` is empty if everything was right."""

    wrong: tuple[str, ...]
    code: int | None
    seconds: float | None
    message: str


_PROGRESS = re.compile(r"^(Using the environment|\S.*: .*\d+ s\b.*|imports|done in|\$ )")


def message_of(text: str) -> list[str]:
    """Return the lines of the message in a command's standard error.

    The message starts at the first line that begins with `error:` or a command's name. Lines of
    progress and the log's last lines are left out.
    """
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    start = re.compile(r"(error|[\w.]+|interrupted|stopped)\b[^ ]*: ")
    begin = next((n for n, line in enumerate(lines) if start.match(line)), len(lines))
    found = [
        line for line in lines[begin:] if not _PROGRESS.match(line) or line.startswith("error")
    ]
    end = next((n for n, line in enumerate(found) if line.startswith("Last log lines")), len(found))
    return found[:end]


def carry_out(row: Row, folder: Path, cache: Path) -> Seen:
    """Carry out the row in a new workspace, and return what was seen."""
    workspace = Workspace(folder, cache)
    folder.mkdir(parents=True, exist_ok=True)
    if row.prepare is not None:
        row.prepare(workspace)
    with started(row.words(workspace), workspace, row.output) as command:
        wrong = []
        try:
            if row.cause is not None:
                row.cause(command)
        except Exception as error:
            # The fault could not be caused: what it was to befall is not there.
            wrong.append(f"not caused: {type(error).__name__}: {error}")
        took = command.ended_after(row.seconds)
        try:
            wrong += _wrong(row, workspace, command, took)
        except Exception as error:  # a file that was to be looked at is not there, or is not whole
            wrong.append(f"{type(error).__name__}: {error}")
        text = command.text()
        return Seen(
            tuple(wrong), command.process.poll(), took, "\n".join(message_of(text)) or text[-400:]
        )


def _wrong(row: Row, workspace: Workspace, command: Command, took: float | None) -> list[str]:
    if took is None:
        left = [" ".join(process.cmdline())[:100] for process in command.everything()]
        return [f"after {row.seconds:g} s there was still {left}"]
    code, text = command.process.returncode, command.text()
    there = {name: any(workspace.folder.rglob(name)) for name in (*row.there, *row.absent)}
    more = row.check(workspace, command) if row.check is not None else ""
    faults = {
        f"exit code {code}, not {' or '.join(map(str, row.codes))}": code not in row.codes,
        "a traceback": "Traceback (most recent call last)" in text,
        f"it does not say {row.says!r}": row.says not in text + command.result(),
        f"a message of {len(message_of(text))} lines": len(message_of(text)) > row.lines,
        f"it listens beyond loopback: {command.open_ports}": bool(command.open_ports),
        **{f"{pattern} is missing": not there[pattern] for pattern in row.there},
        **{f"{pattern} is there": there[pattern] for pattern in row.absent},
        more: bool(more),
    }
    return [fault for fault, is_so in faults.items() if is_so]


def wait_for_steps(count: int, then: Cause) -> Cause:
    """Return a cause that acts once the newest run has logged `count` steps."""

    def cause(command: Command) -> None:
        if command.wait_until(lambda: command.workspace.steps() >= count):
            then(command)

    return cause


def after(seconds: float, then: Cause) -> Cause:
    """Return a cause that acts `seconds` after the start."""

    def cause(command: Command) -> None:
        time.sleep(seconds)
        then(command)

    return cause
