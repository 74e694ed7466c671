"""Faults that are planted one at a time into a copy of the sources, and whether tests notice them.

A fault that survives is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One fault: in `file`, `old` becomes `new`, and `tests` must fail.

    It is the first `old` behind `after`; without `after` there is only one.
    """

    what: str
    file: str
    old: str
    new: str
    tests: Any
    after: str = ""

    def plant(self, folder: Path) -> None:
        """Change the file below `folder`, or raise ValueError where the text is not there."""
        path = folder / self.file
        text = path.read_text()
        start = text.index(self.old, text.index(self.after))
        if not self.after and text.count(self.old) > 1:
            raise ValueError(f"{self.what}: {self.file} has {self.old!r} more than once")
        path.write_text(text[:start] + self.new + text[start + len(self.old) :])


def try_each(
    faults: Sequence[Fault], noticed: Callable[[Fault], str | None], description: str
) -> int:
    """Try the faults that the command line names; return 1 if one survived.

    `noticed` says how the tests have noticed a fault, or None.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with TEXT in their name")
    only = parser.parse_args().only
    results = []
    for fault in (fault for fault in faults if only in fault.what):
        how = noticed(fault)
        results.append(how)
        change = f"{fault.what}: {fault.old.strip()!r} → {fault.new.strip()!r}"
        print(f"{'SURVIVED' if how is None else f'noticed {how}'}  {change}", flush=True)
    print(f"{len(results) - results.count(None)} of {len(results)} noticed")
    return int(None in results)
