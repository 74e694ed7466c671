"""`python -m tests.faults`: carry out the table of faults, or chaos."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from . import chaos, table
from .driver import Row, Seen, carry_out
from .rows import ROWS, sweep
from .workspace import ROOT


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for and return the exit code: 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row, and write FAULTS.md")
    parser.add_argument("--only", help="rows with this text in their kind or name")
    parser.add_argument(
        "--write", action="store_true", help="with --only: bring those rows of the page up to date"
    )
    parser.add_argument(
        "--sweep",
        type=float,
        metavar="SECONDS",
        help="signals to commands in steps of so many seconds, 4 s long",
    )
    parser.add_argument(
        "--chaos", action="store_true", help="commands, moments and faults at random"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        help="how long chaos goes on, or looks for a planted breach",
    )
    parser.add_argument("--seed", type=int, help="of chaos; default: a new one, which is printed")
    parser.add_argument(
        "--planted",
        nargs="*",
        metavar="BREACH",
        help="have chaos find these planted breaches; none named: all",
    )
    options = parser.parse_args(arguments)
    if options.chaos:
        return chaos.main(options.minutes, options.seed, options.planted)
    rows = list(sweep(options.sweep, 4.0)) if options.sweep else list(ROWS)
    if options.only:
        rows = [row for row in rows if options.only in f"{row.kind}, {row.name}"]
    found = [(row, _carried_out(row)) for row in rows]
    wrong = [row for row, seen in found if seen.wrong]
    print(f"{len(found) - len(wrong)} of {len(found)} as they must be")
    if options.all or options.write:
        table.write(found, keep=options.only is not None)
    return bool(wrong)


def _carried_out(row: Row) -> Seen:
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        seen = carry_out(row, folder / "work", ROOT / ".cache")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    took = "still at work" if seen.seconds is None else f"{seen.seconds:.1f} s"
    print(
        f"{'WRONG' if seen.wrong else 'right'}  {row.kind}, {row.name}: exit code {seen.code}, "
        f"{took}",
        flush=True,
    )
    for line in seen.wrong:
        print(f"       {line}\n       {seen.message[:600]}", flush=True)
    return seen


if __name__ == "__main__":
    # An exit by exception ends what is at work, and gives disks back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
