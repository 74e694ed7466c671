"""Comparison of two batches, or of two single notebooks: `gallery compare BEFORE AFTER`.

Both may come from one machine or from two. A speed-up has an interval, so its change has one too. A
change is marked only if its interval excludes 1; other changes are noise. Lost parity and a
notebook that no longer passes are regressions as well. Speed-ups under other parameters are
different figures: they are shown and not judged. The duration of a notebook is not judged either,
since one measurement has no interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.console.table import duration, text_table
from gallery_lib.errors import InputError
from gallery_lib.notebooks.batch.record import COMPARED, REPORT_FILE
from gallery_lib.notebooks.batch.reports import speedup
from gallery_lib.system.json_files import Misfit, converted, read_json


@dataclass(frozen=True)
class Change:
    """One line of the report: a notebook, or one of its comparisons, before and after."""

    what: str
    before: str
    after: str
    change: str = ""  # "" if there is nothing to compute
    mark: str = ""  # "regression: …", "improvement", or "" for noise and for equal values

    @property
    def regression(self) -> bool:
        """Return whether the change is a regression beyond the noise."""
        return self.mark.startswith("regression")


@dataclass(frozen=True)
class Batch:
    """One of the two batches to compare, and the machine that it was measured on.

    `notebooks` holds status, seconds, parameters and comparisons of each notebook.
    """

    notebooks: dict[str, dict[str, Any]]
    machine: dict[str, Any]


def read_batch(path: Path | str) -> Batch:
    """Return the batch stored at `path`.

    `path` is a folder of `gallery run` or `prepare.sh --run`, a `report.json`, or a file of
    `benchmarks/gallery.py`.

    Raises:
        InputError: for anything else.
    """
    file = Path(path) / REPORT_FILE if Path(path).is_dir() else Path(path)
    try:
        content = read_json(file, dict[str, Any], again="Give another file.")
        found = content.get("machine", content.get("environment"))
        machine = converted(found, dict[str, Any], "machine")
        entries = converted(content.get("notebooks"), dict[str, dict[str, Any]], "notebooks")
        notebooks = {
            name: _notebook(values, content, f"notebooks.{name}")
            for name, values in entries.items()
        }
    except FileNotFoundError:
        raise InputError(
            f"{file} does not exist: give two folders of `gallery run` or `prepare.sh --run`, or "
            "two files of benchmarks/gallery.py.",
            parameter=str(file),
        ) from None
    except (Misfit, InputError) as error:
        raise InputError(
            f"{file} holds no batch of notebooks: {error}", parameter=str(file)
        ) from None
    if not notebooks:
        raise InputError(f"{file} holds no figures: no notebook is in it.", parameter=str(file))
    facts = {name: machine.get(name) for name in ("cpu", "cores", "python")}
    # torch's version without the name of its build, such as `+cpu`.
    return Batch(notebooks, {**facts, "torch": str(machine.get("torch", "")).partition("+")[0]})


def _notebook(values: dict[str, Any], content: dict[str, Any], place: str) -> dict[str, Any]:
    """Return status, seconds, parameters and comparisons of a notebook; Misfit names `place`."""
    converted(values, COMPARED, place)
    of_a_benchmark = "failed" if values.get("problem", True) else "passed"
    parameters = values.get("parameters", content.get("parameters", {}))
    return {
        "status": converted(values.get("status", of_a_benchmark), str, f"{place}.status"),
        "seconds": converted(values.get("seconds"), float, f"{place}.seconds"),
        "parameters": converted(parameters, dict[str, Any], f"{place}.parameters"),
        "comparisons": values["comparisons"],
    }


def _of_status(name: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    old, new = (
        f"{side['status']}, {duration(side['seconds'])}" if side else "absent"
        for side in (before, after)
    )
    if not before or not after:
        return Change(name, old, new)
    mark, both = "", (before["seconds"], after["seconds"])
    if before["status"] != after["status"]:
        lost = f"regression: {after['status']}" if before["status"] == "passed" else ""
        mark = "improvement" if after["status"] == "passed" else lost
    change = f"{both[1] / both[0]:.2f}× as long" if all(both) else ""
    return Change(name, old, new, change, mark)


def _of_comparison(
    what: str, before: dict[str, Any], after: dict[str, Any], *, same: bool
) -> Change:
    texts = speedup(before), speedup(after)
    if not same:
        return Change(what, *texts, "", "not judged: other parameters")
    if before["parity_passed"] != after["parity_passed"]:
        mark = "improvement" if after["parity_passed"] else "regression: no parity any more"
        return Change(what, *texts, "", mark)
    if not before["speedup"] or not after["speedup"]:
        return Change(what, *texts)
    change = stats.change_of_ratio(*(stats.Ratio(**side["speedup"]) for side in (before, after)))
    marks = {"faster": "improvement", "slower": "regression: a smaller speed-up"}
    return Change(what, *texts, str(change), marks.get(change.verdict, ""))


def _by_conditions(side: dict[str, Any] | None) -> dict[tuple[int, str], dict[str, Any]]:
    return {(c["processes"], c["amp_level"]): c for c in (side["comparisons"] if side else [])}


def changes(before: Batch, after: Batch) -> list[Change]:
    """Return a line per notebook of either batch, and one per comparison present in both.

    Two comparisons of a notebook match if their number of processes and AMP level are the same.
    """
    lines = []
    for name in dict.fromkeys([*before.notebooks, *after.notebooks]):
        old, new = before.notebooks.get(name), after.notebooks.get(name)
        lines.append(_of_status(name, old, new))
        earlier, later = _by_conditions(old), _by_conditions(new)
        for key in [key for key in earlier if key in later]:
            what = f"  {key[0]} process(es), {key[1]}"
            same = bool(old and new and old["parameters"] == new["parameters"])
            lines.append(_of_comparison(what, earlier[key], later[key], same=same))
    return lines


def text(before: Batch, after: Batch) -> str:
    """Return the changes as a table, followed by the number of regressions.

    A last line names differences between the two machines, if there are any.
    """
    lines = changes(before, after)
    rows = [["notebook", "before", "after", "after / before", ""]]
    rows += [[c.what, c.before, c.after, c.change, c.mark] for c in lines]
    regressions = sum(change.regression for change in lines)
    said = [
        f"{f'{regressions} regression(s)' if regressions else 'no regression'} beyond the "
        "intervals; durations have no interval and are not judged."
    ]
    differing = [
        f"{name}: {value} → {later}"
        for name, value in before.machine.items()
        if value and (later := after.machine[name]) and value != later
    ]
    if differing:
        said.append(f"Not measured under the same conditions ({'; '.join(differing)}).")
    return "\n".join([text_table(rows), "", *said])
