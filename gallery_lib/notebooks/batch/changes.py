"""Comparison of two batches, or of two single notebooks: `gallery compare BEFORE AFTER`.

Both may come from one machine or from two. A speed-up has an interval, so its change has one too. A
change is marked only if its interval excludes 1; other changes are noise. Lost parity and a
notebook that no longer passes are regressions as well. Speed-ups under other parameters are
different figures: they are shown and not judged. The duration of a notebook is not judged either,
since one measurement has no interval.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.console.table import duration
from gallery_lib.errors import InputError
from gallery_lib.notebooks.batch.record import COMPARED, REPORT_FILE
from gallery_lib.notebooks.batch.summary import speedup
from gallery_lib.report.tables import text_table
from gallery_lib.system.json_files import Misfit, converted, read_json


@dataclass(frozen=True)
class Change:
    """One line of the report: a notebook, or one of its comparisons, before and after."""

    what: str
    before: str
    after: str
    change: str  # "" if there is nothing to compute
    mark: str  # "regression: …", "improvement", or "" for noise and for equal values

    @property
    def regression(self) -> bool:
        """Return whether the change is a regression beyond the noise."""
        return self.mark.startswith("regression")


@dataclass(frozen=True)
class Batch:
    """One of the two batches to compare.

    `notebooks` holds status, seconds, parameters and comparisons of each notebook. `machine` says
    where they were measured.
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
        machine = converted(
            content.get("machine", content.get("environment")), dict[str, Any], "machine"
        )
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
    """Return status, seconds, parameters and comparisons of a notebook.

    Raises:
        Misfit: for values of another form; the message names the `place`.
    """
    status = (
        values["status"]
        if "status" in values
        else "failed"
        if values.get("problem", True)
        else "passed"
    )
    converted(values, COMPARED, place)
    return {
        "status": converted(status, str, f"{place}.status"),
        "seconds": converted(values.get("seconds"), float, f"{place}.seconds"),
        "parameters": converted(
            values.get("parameters", content.get("parameters", {})),
            dict[str, Any],
            f"{place}.parameters",
        ),
        "comparisons": values["comparisons"],
    }


def _of_status(name: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Change:
    def shown(side: dict[str, Any] | None) -> str:
        return "absent" if side is None else f"{side['status']}, {duration(side['seconds'])}"

    mark = ""
    if before and after and before["status"] != after["status"]:
        mark = (
            "improvement"
            if after["status"] == "passed"
            else f"regression: {after['status']}"
            if before["status"] == "passed"
            else ""
        )
    change = (
        f"{after['seconds'] / before['seconds']:.2f}× as long"
        if before and after and before["seconds"] and after["seconds"]
        else ""
    )
    return Change(name, shown(before), shown(after), change, mark)


def _of_comparison(what: str, before: dict[str, Any], after: dict[str, Any]) -> Change:
    texts = speedup(before), speedup(after)
    if before["parity_passed"] != after["parity_passed"]:
        return Change(
            what,
            *texts,
            "",
            "improvement" if after["parity_passed"] else "regression: no parity any more",
        )
    if not before["speedup"] or not after["speedup"]:
        return Change(what, *texts, "", "")
    change = stats.change_of_ratio(
        stats.Ratio(**before["speedup"]), stats.Ratio(**after["speedup"])
    )
    mark = {"faster": "improvement", "slower": "regression: a smaller speed-up"}.get(
        change.verdict, ""
    )
    return Change(what, *texts, str(change), mark)


def _by_conditions(side: dict[str, Any] | None) -> dict[tuple[int, str], dict[str, Any]]:
    return {(c["processes"], c["amp_level"]): c for c in (side["comparisons"] if side else [])}


def changes(before: Batch, after: Batch) -> list[Change]:
    """Return a line per notebook of either batch, and one per comparison present in both.

    Two comparisons of a notebook match if their number of processes and AMP level are the same.
    """
    lines = []
    for name in dict.fromkeys([*before.notebooks, *after.notebooks]):
        sides = before.notebooks.get(name), after.notebooks.get(name)
        lines.append(_of_status(name, *sides))
        earlier, later = (_by_conditions(side) for side in sides)
        for key in [key for key in earlier if key in later]:
            change = _of_comparison(f"  {key[0]} process(es), {key[1]}", earlier[key], later[key])
            same = sides[0] and sides[1] and sides[0]["parameters"] == sides[1]["parameters"]
            lines.append(
                change
                if same
                else dataclasses.replace(change, change="", mark="not judged: other parameters")
            )
    return lines


def text(before: Batch, after: Batch) -> str:
    """Return the changes as a table, followed by the number of regressions.

    A last line names differences between the two machines, if there are any.
    """
    lines = changes(before, after)
    rows = [
        ["notebook", "before", "after", "after / before", ""],
        *([c.what, c.before, c.after, c.change, c.mark] for c in lines),
    ]
    regressions = sum(change.regression for change in lines)
    count = (
        "no regression beyond the intervals"
        if not regressions
        else f"{regressions} regression(s) beyond the intervals"
    )
    machines = [(name, value, after.machine[name]) for name, value in before.machine.items()]
    differing = [
        f"{name}: {value} → {later}"
        for name, value, later in machines
        if value and later and value != later
    ]
    elsewhere = (
        f"\nNot measured under the same conditions ({'; '.join(differing)})." if differing else ""
    )
    return (
        f"{text_table(rows)}\n\n{count}; durations have no interval and are not judged.{elsewhere}"
    )
