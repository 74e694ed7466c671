"""Writer of the table of faults in the documents, from what was seen."""

from __future__ import annotations

from collections.abc import Sequence

from .driver import Row, Seen
from .workspace import ROOT

_PAGE = ROOT / "docs" / "guides" / "faults.md"
_HEAD = """\
# When something goes wrong

Each row was caused for real, and this is what was seen: `.venv/bin/python -m tests.faults --all` \
writes the page.

Of every row it was checked that nothing is left running, that nothing listens beyond the loopback \
address, that there is no
traceback, and that the message is as short as the row allows.
"""


def write(found: Sequence[tuple[Row, Seen]]) -> None:
    """Write docs/guides/faults.md."""
    parts = [_HEAD]
    for kind in dict.fromkeys(row.kind for row, _ in found):
        rows = [
            "| fault | exit code | seconds until nothing is left | as it must be |",
            "|---|---|---|---|",
        ]
        for row, seen in found:
            if row.kind == kind:
                took = "" if seen.seconds is None else f"{seen.seconds:.0f}"
                rows.append(
                    f"| {row.name} | {seen.code} | {took} | "
                    f"{'no: ' + '; '.join(seen.wrong) if seen.wrong else 'yes'} |"
                )
        parts.append(f"## {kind[0].upper()}{kind[1:]}\n\n" + "\n".join(rows) + "\n")
    _PAGE.write_text("\n".join(parts))
