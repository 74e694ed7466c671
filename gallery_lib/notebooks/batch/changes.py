"""Comparison of two batches of notebooks: `gallery compare BEFORE AFTER`.

A speed-up has an interval, so its change has one too. A change is marked only if its interval
excludes 1; other changes are noise. Lost parity and a notebook that no longer passes are
regressions as well. Speed-ups under other parameters are shown and not judged, and neither is the
duration of a notebook: one measurement has no interval.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from gallery_lib import stats
from gallery_lib.console.text import duration, text_table
from gallery_lib.notebooks.batch.record import Compared, Record, Report
from gallery_lib.notebooks.batch.reports import speedup


@dataclass(frozen=True)
class Change:
    """One line of the report: a notebook, or one of its comparisons, before and after."""

    what: str
    before: str
    after: str
    change: str = ""  # "" if there is nothing to compute
    mark: str = ""  # "regression: …", "improvement", or "" for noise and for equal values


def _of_status(name: str, before: Record | None, after: Record | None) -> Change:
    old, new = (
        f"{side.status}, {duration(side.seconds)}" if side else "absent" for side in (before, after)
    )
    mark = ""
    if before and after and before.status != after.status:
        lost = f"regression: {after.status}" if before.status == "passed" else ""
        mark = "improvement" if after.status == "passed" else lost
    return Change(name, old, new, "", mark)


def _of_comparison(what: str, before: Compared, after: Compared, *, same: bool) -> Change:
    texts = speedup(before), speedup(after)
    if not same:
        return Change(what, *texts, "", "not judged: other parameters")
    if before.parity_passed != after.parity_passed:
        mark = "improvement" if after.parity_passed else "regression: no parity any more"
        return Change(what, *texts, "", mark)
    if not before.speedup or not after.speedup:
        return Change(what, *texts)
    change = stats.change_of_ratio(before.speedup, after.speedup)
    marks = {"faster": "improvement", "slower": "regression: a smaller speed-up"}
    return Change(what, *texts, str(change), marks.get(change.verdict, ""))


def changes(before: Report, after: Report) -> list[Change]:
    """Return a line per notebook of either batch, and one per comparison present in both.

    Two comparisons of a notebook match if their number of processes and AMP level are the same.
    """
    lines = []
    for name in dict.fromkeys([*before.notebooks, *after.notebooks]):
        old, new = before.notebooks.get(name), after.notebooks.get(name)
        lines.append(_of_status(name, old, new))
        if old is None or new is None:
            continue
        for one, other in itertools.product(old.comparisons, new.comparisons):
            if (one.processes, one.amp_level) == (other.processes, other.amp_level):
                what = f"  {one.processes} process(es), {one.amp_level}"
                same = old.parameters == new.parameters
                lines.append(_of_comparison(what, one, other, same=same))
    return lines


def regressions(lines: list[Change]) -> int:
    """Return how many of the changes are regressions beyond the noise."""
    return sum(line.mark.startswith("regression") for line in lines)


def text(before: Report, after: Report) -> str:
    """Return the changes as a table, the number of regressions, and how the machines differ."""
    lines = changes(before, after)
    rows = [["notebook", "before", "after", "after / before", ""]]
    rows += [[line.what, line.before, line.after, line.change, line.mark] for line in lines]
    said = f"{regressions(lines) or 'no'} regression(s) beyond the intervals."
    differing = [
        f"{name}: {value} → {after.machine.get(name)}"
        for name, value in before.machine.items()
        if value != after.machine.get(name)
    ]
    if differing:
        said += f"\nNot measured under the same conditions ({'; '.join(differing)})."
    return f"{text_table(rows)}\n\n{said}"
