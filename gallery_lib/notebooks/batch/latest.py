"""Newest measurement of each notebook, on this machine or committed from the one nearest to it.

A notebook, a batch and `gallery compare` all leave a `comparison.json` below the folder of runs.
The newest one of each notebook counts. The folder may be shared, so a run of another machine counts
where this machine has none, and the machine is named.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.notebooks.batch.measured_code import gallery_files
from gallery_lib.report import verdict
from gallery_lib.report.speedups import HERE, Speedup
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware

_MOST_FILES = 500
"""Maximum number of comparisons to read, the newest first: a folder of runs may hold years."""
_YOUR_MODEL = re.compile(r"-your-model[^/]*/task\.py:TASK$")


def notebook_of(task: str) -> str:
    """Return the notebook that trains `task`, which is named as in a comparison."""
    return "your_model" if _YOUR_MODEL.search(task.replace("\\", "/")) else task


def _is_here(environment: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether two environments describe one machine, or machines of one kind."""
    return all(
        environment.get(name) == here.get(name) for name in ("cpu", "isa", "device", "cores")
    )


def _speedup(
    comparison: Comparison, title: str, here: Mapping[str, Any], modified: float
) -> Speedup:
    run = comparison.baseline
    machine = HERE if _is_here(run.environment, here) else hardware.machine_name(run.environment)
    return Speedup(
        name=notebook_of(comparison.task),
        title=title,
        ratio=comparison.speedup,
        verdict=comparison.verdict,
        conditions=f"{verdict.precision(run)}, {verdict.batch(run)}",
        machine=machine,
        date=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(modified)),
        code=run.environment.get("git"),
        busy=bool(verdict.busy_line(comparison)),
    )


def own_results(
    folder: Path, titles: Mapping[str, str], here: Mapping[str, Any]
) -> dict[str, Speedup]:
    """Return the newest comparison on one process of each notebook in `titles`.

    Comparisons are read from below `folder`. One of this machine, `here`, counts before a newer one
    of another machine. An unreadable comparison is left out: one that another version wrote is no
    reason to show nothing.
    """
    dated = sorted(
        ((path.stat().st_mtime, path) for path in folder.rglob("comparison.json")), reverse=True
    )
    results: dict[str, Speedup] = {}
    for modified, path in dated[:_MOST_FILES]:
        try:
            comparison = read_comparison(path.parent)
        except InputError:
            continue
        name = notebook_of(comparison.task)
        if name not in titles or comparison.baseline.world_size != 1:
            continue
        one = _speedup(comparison, titles[name], here, modified)
        if name not in results or (one.machine == HERE and results[name].machine != HERE):
            results[name] = one
    return results


# --------------------------------------------------------------------------------------------------
# Committed results


@dataclass(frozen=True)
class Committed:
    """A file of results in the repository, with the speed-ups of its notebooks."""

    path: Path
    content: Mapping[str, Any]

    @property
    def described(self) -> str:
        """Return when, where and with which code it was measured, as half a sentence."""
        environment = self.content["environment"]
        code = environment.get("git") or "not recorded"
        return (
            f"measured on {self.content['date']} on {hardware.describe(environment)}, with code "
            f"version {code}"
        )

    def speedups(self, titles: Mapping[str, str]) -> dict[str, Speedup]:
        """Return the comparison on one process of each notebook in `titles` that ran."""
        environment, profile = (
            self.content["environment"],
            self.content.get("parameters", {}).get("profile"),
        )
        results = {}
        for name, run in self.content["notebooks"].items():
            alone = [c for c in run["comparisons"] if c["processes"] == 1]
            if name not in titles or run["problem"] or not alone:
                continue
            ratio = Ratio(**alone[0]["speedup"]) if alone[0]["speedup"] else None
            conditions = ", ".join(
                filter(
                    None, [_precision(alone[0], environment), f"{profile} sizes" if profile else ""]
                )
            )
            machine, date = (
                hardware.machine_name(environment),
                run.get("date") or self.content["date"],
            )
            results[name] = Speedup(
                name,
                titles[name],
                ratio,
                alone[0]["verdict"],
                conditions,
                machine,
                date,
                environment.get("git"),
            )
        return results


def _precision(comparison: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    if comparison["amp_level"] == "O0":
        return "fp32"
    return "bf16 autocast" if environment["device"] == "cpu" else "autocast"


def nearest(folder: Path, here: Mapping[str, Any]) -> Committed | None:
    """Return the committed results of the machine that is most like this one.

    Of several such files, the newest counts. Returns None for a folder without results.
    """

    def nearness(item: tuple[Path, Mapping[str, Any]]) -> tuple[Any, ...]:
        path, content = item
        there = content["environment"]
        kinds = [environment["device"] == "cpu" for environment in (there, here)]
        precisions = [hardware.emulated_bf16(dict(environment)) for environment in (there, here)]
        unlike = len(set(there["isa"]) ^ set(here["isa"]))
        cores = abs(math.log2(there["cores"] / here["cores"]))
        return (
            kinds[0] == kinds[1],
            precisions[0] == precisions[1],
            -unlike,
            -cores,
            content["date"],
            path.name,
        )

    files = gallery_files(folder)
    return Committed(*max(files.items(), key=nearness)) if files else None


# --------------------------------------------------------------------------------------------------
# Notes for the reader


def code_note(speedups: Iterable[Speedup], here: str | None) -> str:
    """Return a line that names the versions of the code that were measured.

    Returns '' if all are the version `here`.
    """
    by_code: dict[str, list[str]] = {}
    for one in speedups:
        by_code.setdefault(one.code or "not recorded", []).append(one.title)
    if set(by_code) <= {here}:
        return ""
    versions = "; ".join(f"{code}: {', '.join(titles)}" for code, titles in by_code.items())
    return (
        f"Version of the code that was measured: {versions}. Here it is {here or 'not recorded'}."
    )


def busy_note(speedups: Iterable[Speedup]) -> str:
    """Return a line that names the figures from a busy machine; '' for none."""
    busy = [one.title for one in speedups if one.busy]
    return f"The machine was busy, so repeat when it is quiet: {', '.join(busy)}." if busy else ""
