"""Writer of FAULTS.md, the table of faults, from what was seen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .driver import Row, Seen

_PAGE = Path(__file__).with_name("FAULTS.md")
_HEAD = """\
# Faults, and what came of them

Each row was caused for real, and this is what was seen: `.venv/bin/python -m tests.faults --all`
writes the page.

Every row was also checked for what must never happen: a process that is left, a socket that listens
beyond the loopback address, a traceback, a message that is longer than the row allows.
"""
_COLUMNS = (
    "| fault | exit code | seconds until nothing is left | as it must be |\n|---|---|---|---|"
)
_SECTION = re.compile(r"^## (.+)\n\n\|.+\n\|-.+\n((?:\|.+\n)+)", re.MULTILINE)


def write(found: Sequence[tuple[Row, Seen]], *, keep: bool = False) -> None:
    """Write FAULTS.md; with `keep`, rows that were not carried out stay as they are."""
    rows: dict[str, dict[str, str]] = _rows_of_page() if keep else {}
    for row, seen in found:
        took = "" if seen.seconds is None else f"{seen.seconds:.0f}"
        verdict = "no: " + "; ".join(seen.wrong) if seen.wrong else "yes"
        kind = f"{row.kind[0].upper()}{row.kind[1:]}"
        line = f"| {row.name} | {seen.code} | {took} | {verdict} |"
        rows.setdefault(kind, {})[row.name] = line
    parts = [
        f"## {kind}\n\n" + "\n".join([_COLUMNS, *lines.values()]) + "\n"
        for kind, lines in rows.items()
    ]
    _PAGE.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")


def _rows_of_page() -> dict[str, dict[str, str]]:
    """Return the lines of the page by kind and name of the fault."""
    return {
        section[1]: {line.split(" | ")[0][2:]: line for line in section[2].splitlines()}
        for section in _SECTION.finditer(_PAGE.read_text(encoding="utf-8"))
    }
