"""What changed between two batches of notebooks, on one machine or on two: `gallery compare BEFORE AFTER`.

A speed-up comes with an interval, so its change has one too, and only a change whose interval does not hold 1 is
marked: the rest is noise. Parity that is lost and a notebook that no longer passes are regressions as well. The
duration of a notebook is measured once and has no interval: it is shown, and not judged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.batch.record import REPORT_FILE
from gallery_lib.batch.summary import duration, speedup
from gallery_lib.errors import InputError
from gallery_lib.report.tables import text_table


@dataclass(frozen=True)
class Change:
    """One line: a notebook, or one of its comparisons, before and after."""

    what: str
    before: str
    after: str
    change: str  # "" where there is nothing to compute
    mark: str  # "regression: …", "improvement", or "" for noise and for what is equal

    @property
    def regression(self) -> bool:
        """Whether it is worse, beyond the noise."""
        return self.mark.startswith("regression")


def read_batch(path: Path | str) -> dict[str, dict[str, Any]]:
    """Status, seconds and comparisons of each notebook, by name.

    `path` is a folder that `gallery run` wrote, its `report.json`, or a file that `benchmarks/gallery.py` wrote.
    Raises InputError for anything else.
    """
    file = Path(path) / REPORT_FILE if Path(path).is_dir() else Path(path)
    try:
        notebooks = json.loads(file.read_text())["notebooks"]
        return {
            name: {
                "status": values["status"] if "status" in values else "failed" if values["problem"] else "passed",
                "seconds": values["seconds"],
                "comparisons": values["comparisons"],
            }
            for name, values in notebooks.items()
        }
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: give two folders of `gallery run`, or two files of benchmarks/gallery.py.") from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file} holds no batch of notebooks.") from None


def _of_status(name: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    def shown(side: dict[str, Any] | None) -> str:
        return "absent" if side is None else f"{side['status']}, {duration(side['seconds'])}"

    mark = ""
    if before and after and before["status"] != after["status"]:
        mark = "improvement" if after["status"] == "passed" else f"regression: {after['status']}" if before["status"] == "passed" else ""
    change = f"{after['seconds'] / before['seconds']:.2f}× as long" if before and after and before["seconds"] and after["seconds"] else ""
    return Change(name, shown(before), shown(after), change, mark)


def _of_comparison(what: str, before: dict[str, Any], after: dict[str, Any]) -> Change:
    texts = speedup(before), speedup(after)
    if before["parity_passed"] != after["parity_passed"]:
        return Change(what, *texts, "", "improvement" if after["parity_passed"] else "regression: no parity any more")
    if not before["speedup"] or not after["speedup"]:
        return Change(what, *texts, "", "")
    change = stats.change_of_ratio(stats.Ratio(**before["speedup"]), stats.Ratio(**after["speedup"]))
    mark = {"faster": "improvement", "slower": "regression: a smaller speed-up"}.get(change.verdict, "")
    return Change(what, *texts, f"{change.ratio:.2f}× ({change.low:.2f} to {change.high:.2f})", mark)


def _by_conditions(side: dict[str, Any] | None) -> dict[tuple[int, str], dict[str, Any]]:
    return {(c["processes"], c["amp_level"]): c for c in (side["comparisons"] if side else [])}


def changes(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[Change]:
    """A line per notebook of either batch, and one per comparison that both have made under the same conditions."""
    found = []
    for name in dict.fromkeys([*before, *after]):
        sides = before.get(name), after.get(name)
        found.append(_of_status(name, *sides))
        earlier, later = (_by_conditions(side) for side in sides)
        for key in earlier:
            if key in later:
                found.append(_of_comparison(f"  {key[0]} process(es), {key[1]}", earlier[key], later[key]))
    return found


def text(found: list[Change]) -> str:
    """The lines as a table, and how many regressions there are."""
    rows = [["notebook", "before", "after", "after / before", ""], *([c.what, c.before, c.after, c.change, c.mark] for c in found)]
    regressions = sum(change.regression for change in found)
    count = "no regression beyond the intervals" if not regressions else f"{regressions} regression(s) beyond the intervals"
    return f"{text_table(rows)}\n\n{count}; durations have no interval and are not judged."
