"""Driver for a row of the table: prepare, start, cause the fault, wait, and check what is seen."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .workspace import ROOT, Command, Workspace, started

Cause = Callable[[Command], None]


@dataclass(frozen=True)
class Row:
    """A fault, how it is caused, and what must be seen.

    Args:
        kind: kind of the fault, a heading of the table.
        name: name of the row in the table.
        words: returns the command to run, in a workspace that `prepare` has made ready.
        cause: what is done to the command while it runs; None: nothing.
        codes: exit codes that are right.
        says: a part of what must be said on standard error, or printed.
        lines: largest number of lines of the message.
        seconds: longest time from the cause until no process is left.
        prepare: makes the workspace ready; None: nothing to do.
        there: patterns of files that must be in the workspace afterwards.
        absent: patterns of files that must not be in the workspace afterwards.
        output: where standard output goes (`workspace.Command`).
        check: more that must hold; it returns what is wrong, or "".
        quick: whether the row is an ordinary test as well.
        starting: whether Python may still be starting the command. Its own traceback is accepted
            then: before the first lines of a script nobody else can answer a signal.
    """

    kind: str
    name: str
    words: Callable[[Workspace], list[str]]
    cause: Cause | None = None
    codes: tuple[int, ...] = (0,)
    says: str = ""
    lines: int = 3
    seconds: float = 60.0
    prepare: Callable[[Workspace], None] | None = None
    there: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    output: str = "file"
    check: Callable[[Workspace, Command], str] | None = None
    quick: bool = False
    starting: bool = False


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
    begin = next(
        (
            n
            for n, line in enumerate(lines)
            if re.match(r"(error|[\w.]+|interrupted|stopped)\b[^ ]*: ", line)
        ),
        len(lines),
    )
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
    found = []
    if took is None:
        left = [" ".join(process.cmdline())[:100] for process in command.everything()]
        return [f"after {row.seconds:g} s there was still {left}"]
    code, text, printed = command.process.returncode, command.text(), command.result()
    if row.starting and _python_was_starting(text):
        return []
    if code not in row.codes:
        found.append(f"exit code {code}, not {' or '.join(map(str, row.codes))}")
    if "Traceback (most recent call last)" in text:
        found.append("a traceback")
    if row.says not in text and row.says not in printed:
        found.append(f"it does not say {row.says!r}")
    if len(message_of(text)) > row.lines:
        found.append(f"a message of {len(message_of(text))} lines")
    if command.open_ports:
        found.append(f"it listens beyond loopback: {command.open_ports}")
    found += [
        f"{pattern} is missing" for pattern in row.there if not any(workspace.folder.rglob(pattern))
    ]
    found += [
        f"{pattern} is there" for pattern in row.absent if any(workspace.folder.rglob(pattern))
    ]
    if row.check is not None and (more := row.check(workspace, command)):
        found.append(more)
    return found


_FIRST_IMPORTS = re.compile(
    r"/(launch_single_task\.py|faults/gallery\.py|data_prep/\w+\.py|gallery_lib/__init__\.py"
    r"|gallery_lib/system/(__init__|prepared_python|paths)\.py)$"
)
"""Files that a script of the checkout imports before it takes care of signals."""


def _python_was_starting(text: str) -> bool:
    """Return whether the traceback is one of Ctrl-C before a script took care of signals."""
    if not text.rstrip().endswith("KeyboardInterrupt"):
        return False
    # The call that takes care of it is the last moment at which it may come.
    if "in run_in_prepared" in text and "signal.signal(signal.SIGINT, signal.SIG_DFL)" not in text:
        return False
    files = re.findall(r'File "([^"]+)"', text)
    ours = [file for file in files if file.startswith(f"{ROOT}/") and "/.venv/" not in file]
    return all(_FIRST_IMPORTS.search(file) for file in ours)


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
