"""Tables of a machine's page on how soon a run starts, from files of `startup.py`."""

from __future__ import annotations

from collections.abc import Sequence

from published import File

from gallery_lib.console.table import Rows, markdown_table, seconds


def startup(files: Sequence[File]) -> str:
    """Return the tables of start-up times: two runs in a row, and the first minute of one."""
    rows = [
        [
            "task",
            "first run starts in",
            "second run",
            "of which compiling",
            "samples/s, steady state",
            "whole run",
        ]
    ]
    first_minutes = [
        [
            *("task", "run", "first step after", "samples", "over eager mode", "longest step"),
            "ahead of eager mode from step",
        ]
    ]
    by_run = len(files) > 1
    for number, file in enumerate(files, 1):
        for name, row in file.content["tasks"].items():
            name += f", run {number}" if by_run else ""
            first, second = row["first"], row["second"]
            rates = second["samples_per_second"]
            times = [
                first["startup_seconds"]["total"],
                second["startup_seconds"]["total"],
                second["startup_seconds"]["compile"],
            ]
            rows.append(
                [
                    name,
                    *(f"{value:.1f} s" for value in times),
                    f"{rates['global']:.1f}",
                    f"{rates['whole_run']:.1f}",
                ]
            )
            first_minutes += _first_minute(name, row.get("background", {}))
    tables = [rows, first_minutes] if len(first_minutes) > 1 else [rows]
    return "\n\n".join(map(markdown_table, tables))


def _first_minute(name: str, kinds: dict[str, dict[str, float]]) -> Rows:
    """Return a row for each kind of run that trained from a cold cache."""
    names = {"eager": "eager mode", "compiled": "compiled", "background": "in the background"}
    result, eager = [], kinds.get("eager", {}).get("samples", 0.0)
    for kind, row in kinds.items():
        first, longest = row.get("first_step_seconds"), row.get("longest_step_seconds")
        ahead = row.get("ahead_from_step")
        never = "" if kind == "eager" else "not yet"
        result.append(
            [
                name,
                names[kind],
                "–" if first is None else f"{first:.1f} s",
                f"{row['samples']:.0f}",
                f"{row['samples'] / eager:.2f}×" if eager else "–",
                "–" if longest is None else seconds(longest),
                never if ahead is None else f"{ahead:.0f}",
            ]
        )
    return result
