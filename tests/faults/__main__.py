"""`python -m tests.faults`: carry out the table of faults and write FAULTS.md, or chaos."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import chaos
from .driver import ROOT, Row, Seen, carry_out
from .rows import ROWS

_PAGE = Path(__file__).with_name("FAULTS.md")
_HEAD = """\
# Faults, and what came of them

Each row was caused for real, and this is what was seen: `.venv/bin/python -m tests.faults --all`
writes the page.

Every row was also checked for what must never happen: a process that is left, a socket that listens
beyond the loopback address, a traceback, a message that is longer than the row allows.
"""
_COLUMNS = "| fault | exit code | seconds until nothing is left |\n|---|---|---|"


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for and return the exit code: 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row, and write FAULTS.md")
    parser.add_argument("--only", help="rows with this text in their kind or name")
    parser.add_argument("--chaos", action="store_true", help="commands and faults at random")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long chaos goes on")
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
    rows = [row for row in ROWS if (options.only or "") in f"{row.kind}, {row.name}"]
    found = [(row, _carried_out(row)) for row in rows]
    wrong = [row for row, seen in found if seen.wrong]
    print(f"{len(found) - len(wrong)} of {len(found)} as they must be")
    if options.all and not wrong:
        _write(found)
    return bool(wrong)


def _carried_out(row: Row) -> Seen:
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        seen = carry_out(row, Path(folder) / "work", ROOT / ".cache")
    took = "still at work" if seen.seconds is None else f"{seen.seconds:.1f} s"
    verdict = "WRONG" if seen.wrong else "right"
    print(f"{verdict}  {row.kind}, {row.name}: exit code {seen.code}, {took}", flush=True)
    for line in seen.wrong:
        print(f"       {line}\n       {seen.message[:600]}", flush=True)
    return seen


def _write(found: Sequence[tuple[Row, Seen]]) -> None:
    sections: dict[str, list[str]] = {}
    for row, seen in found:
        lines = sections.setdefault(f"## {row.kind[0].upper()}{row.kind[1:]}\n", [_COLUMNS])
        lines.append(f"| {row.name} | {seen.code} | {seen.seconds or 0:.0f} |")
    parts = ["\n".join([kind, *lines]) + "\n" for kind, lines in sections.items()]
    _PAGE.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")


if __name__ == "__main__":
    # An exit by exception ends what is at work, and gives disks back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
