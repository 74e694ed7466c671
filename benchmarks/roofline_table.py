"""Table of a machine's page on shares of its limits, from files of `rooflines.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from published import File

from gallery_lib.console.table import markdown_table, seconds


def rooflines(files: Sequence[File]) -> str:
    """Return the table of each task's share, run by run, and of what the last run shows."""
    runs = [file.content["tasks"] for file in files]
    columns = [f"run {file.run}" for file in files] if len(files) > 1 else ["share"]
    rows = [["task", "input", "step", *columns, "most to gain"]]
    for name in sorted({name for tasks in runs for name in tasks}):
        last = [tasks[name] for tasks in runs if name in tasks][-1]
        sizes = ", ".join(f"{key.replace('_', ' ')} {n}" for key, n in last["sizes"].items())
        step = "–" if last["reason"] else seconds(last["step_seconds"]["median"])
        shares = [_share(tasks.get(name)) for tasks in runs]
        rows.append([name, sizes, step, *shares, last["reason"] or _most_to_gain(last)])
    return markdown_table(rows)


def _share(row: dict[str, Any] | None) -> str:
    if row is None or row["reason"]:
        return "–"
    limit, taken = (
        sum(group[name] for group in row["groups"]) for name in ("limit_seconds", "seconds")
    )
    return f"{limit / taken:.0%}"


def _most_to_gain(row: dict[str, Any]) -> str:
    first = row["groups"][0]  # the groups with most seconds to gain come first
    return f"{first['name']}, {seconds(first['seconds'] - first['limit_seconds'])}"
