"""Newest measurement of each notebook: on this machine, and as it is committed.

A notebook, a batch and `gallery compare` all leave a `comparison.json` below the folder of runs.
The newest one of each notebook counts. The folder may be shared, so a run of another machine counts
where this machine has none, and the machine is named.

Committed are benches, one folder for each machine. All places that show a speed-up without a run of
the reader's (README, the index) take it from here: that of `PUBLISHED`, or in a notebook
that of the machine nearest to the reader's.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.measure.bench.result import OURS, Bench, read_bench
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.report import verdict
from gallery_lib.report.speedups import HERE, Speedup
from gallery_lib.system import hardware

_MOST_FILES = 500
"""Maximum number of comparisons to read, the newest first: a folder of runs may hold years."""
_YOUR_MODEL = re.compile(rf"/cells/\w+/\w+/{re.escape(CELL_FILE)}:TASK$")


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

PUBLISHED = "epyc-zen5-2core"
"""Machine whose figures README and the index show, by its folder."""


def precision_words(amp_level: str, device: str) -> str:
    """Return `fp32`, or `bf16 autocast`, which CPUs have under O1."""
    if amp_level == "O0":
        return "fp32"
    return "bf16 autocast" if device == "cpu" else "autocast"


@dataclass(frozen=True)
class Committed:
    """The bench of a machine in the repository: all tasks, small inputs, beside every peer."""

    path: Path
    bench: Bench

    @property
    def date(self) -> str:
        """Return the day of the newest task."""
        return max(outcome.date for outcome in self.bench.tasks.values())[:10]

    @property
    def precision(self) -> str:
        """Return the precision of all variants in words."""
        return precision_words(self.bench.amp_level, self.bench.environment["device"])

    @property
    def described(self) -> str:
        """Return when, where, in which precision and with which code, as half a sentence."""
        environment = self.bench.environment
        return (
            f"measured on {self.date} in {self.precision} on {hardware.describe(environment)}, "
            f"with code version {environment.get('git') or 'not recorded'}"
        )

    def speedups(self, titles: Mapping[str, str]) -> dict[str, Speedup]:
        """Return ours over eager, for each notebook in `titles` whose task was measured."""
        results = {}
        for name, outcome in self.bench.tasks.items():
            if name not in titles or not outcome.rows:
                continue
            ratio = outcome.ratio(outcome.baseline, OURS)
            results[name] = Speedup(
                name,
                titles[name],
                ratio,
                ratio.verdict if ratio else "not comparable",
                f"{self.precision}, small input",
                hardware.machine_name(self.bench.environment),
                outcome.date,
                self.bench.environment.get("git"),
            )
        return results


def committed(folder: Path, size: str = "small") -> Committed | None:
    """Return the bench of a machine's folder with the most variants; of several, the newest.

    `size` is small or large, as the names of the files have it.
    """

    def worth(one: Committed) -> tuple[int, int, str]:
        outcomes = one.bench.tasks.values()
        return (
            len(outcomes),
            min(len(outcome.rows) for outcome in outcomes),
            max(outcome.date for outcome in outcomes),
        )

    files = sorted(folder.glob(f"bench-{size}*.json"))
    return max((Committed(path, read_bench(path)) for path in files), key=worth, default=None)


def published(results: Path, size: str = "small") -> Committed | None:
    """Return the bench of `PUBLISHED` in the folder of results."""
    return committed(results / PUBLISHED, size)


def nearest(results: Path, here: Mapping[str, Any]) -> Committed | None:
    """Return the committed bench of the machine that is most like this one.

    Of several, the newest counts. Returns None for a folder without results.
    """

    def nearness(one: Committed) -> tuple[Any, ...]:
        there = one.bench.environment
        kinds = [environment["device"] == "cpu" for environment in (there, here)]
        precisions = [hardware.emulated_bf16(dict(environment)) for environment in (there, here)]
        unlike = len(set(there["isa"]) ^ set(here["isa"]))
        cores = abs(math.log2(there["cores"] / here["cores"]))
        return (
            kinds[0] == kinds[1],
            precisions[0] == precisions[1],
            -unlike,
            -cores,
            one.date,
            one.path.parent.name,
        )

    found = (committed(folder) for folder in sorted(results.glob("*/")))
    return max((one for one in found if one), key=nearness, default=None)


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
