"""Rows of faults about limits: of the shell, on the length of paths, and on standing still."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import Words, train
from .driver import Cause, Row, wait_for_steps
from .workspace import Workspace


def limits(stop_loader: Cause) -> Iterator[Row]:
    """Yield the rows; `stop_loader` stops a process that loads data."""
    for processes in ("1", "2"):
        yield Row(
            *("who failed", f"a process that loads data is stopped, of {processes} rank(s)"),
            train("SLOW", "--nproc_per_node", processes, "--rank_timeout", "8", steps=400),
            wait_for_steps(3, stop_loader),
            (1,),
            "stands still",
            seconds=25,
            quick=processes == "1",
        )
    for limit, says, codes, kept in (
        ("-f 16", "the limit of 16384 bytes a file was reached (`ulimit -f`)", (1,), ()),
        ("-f 8 --workers 0", "cannot be written to", (0,), ("results.json",)),
        ("-f 4 --workers 0", "its results could not be written and are lost", (1,), ()),
        ("-n 24", "the limit of 24 open files was reached (`ulimit -n`)", (1,), ()),
    ):
        flag, value, *more = limit.split()
        yield Row(
            *("limits", f"ulimit {limit}"),
            _within(f"{flag} {value}", train("SLOW", *more)),
            codes=codes,
            says=says,
            there=kept,
            quick=limit in ("-f 8 --workers 0", "-n 24"),
        )
    yield Row(
        *("limits", "a temporary folder with a long path"),
        train(steps=6),
        prepare=_long_temporary_folder,
        there=("results.json",),
        absent=("pymp-*",),
        quick=True,
    )


def _within(limit: str, words: Words) -> Words:
    return lambda workspace: ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *words(workspace)]


def _long_temporary_folder(workspace: Workspace) -> None:
    folder = workspace.folder / ("x" * 95)
    folder.mkdir()
    workspace.environment |= {"TMPDIR": str(folder)}
