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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.measure.bench.result import OURS, Bench, read_bench
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.report import verdict
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware

if TYPE_CHECKING:
    from gallery_lib.report.style import Chart

HERE = "this machine"
PUBLISHED = "epyc-zen5-2core"
"""Machine whose figures README and the index show, by its folder."""
_MOST_FILES = 500
"""Maximum number of comparisons to read, the newest first: a folder of runs may hold years."""
_YOUR_MODEL = re.compile(rf"/cells/\w+/\w+/{re.escape(CELL_FILE)}:TASK$")


@dataclass(frozen=True)
class Speedup:
    """Speed-up of a notebook on one process, and where it was measured.

    `ratio` is None where parity failed.
    """

    name: str  # of the notebook
    title: str
    ratio: Ratio | None
    verdict: str
    conditions: str  # precision and sizes
    machine: str  # HERE, or the name of another machine
    date: str  # ISO 8601
    code: str | None = None  # version of the code that was measured; None: not recorded
    busy: bool = False  # whether the machine had other work during the measurement

    @property
    def in_words(self) -> str:
        """Return the speed-up with its interval, or the verdict without a ratio.

        A verdict other than `faster` stands behind the interval.
        """
        if self.ratio is None:
            return self.verdict
        return f"{self.ratio}" + ("" if self.verdict == "faster" else f", {self.verdict}")


def chart(speedups: Sequence[Speedup]) -> Chart:
    """Return a bar per notebook with its interval, the longest first; the table has their links.

    A bar is hatched where another machine was measured.
    """
    from gallery_lib.report import style

    rows = [["notebook", "speed-up (interval)", "measured with", "measured on", "date"]]
    rows += [
        [f"[{s.title}]({s.name}.ipynb)", s.in_words, s.conditions, s.machine, s.date[:10]]
        for s in speedups
    ]
    elsewhere = any(one.machine != HERE for one in speedups)
    title = "Accelerated backend over PyTorch eager"
    title += "; hatched: another machine" if elsewhere else ""
    bars = [
        style.Bar(one.title, one.ratio, one.verdict, "///" if one.machine != HERE else None)
        for one in sorted(speedups, key=lambda one: -one.ratio.ratio if one.ratio else 0.0)
    ]
    return style.Chart(title, rows, lambda: style.ratio_bars(bars, title, "PyTorch eager")[0])


def notes(speedups: Iterable[Speedup], here: str | None) -> list[str]:
    """Return lines that name figures of another code than version `here`, or of a busy machine."""
    lines, speedups = [], list(speedups)
    by_code: dict[str, list[str]] = {}
    for one in speedups:
        by_code.setdefault(one.code or "not recorded", []).append(one.title)
    if set(by_code) - {here}:
        versions = "; ".join(f"{code}: {', '.join(titles)}" for code, titles in by_code.items())
        lines.append(
            f"Version of the code that was measured: {versions}. Here it is "
            f"{here or 'not recorded'}."
        )
    if busy := [one.title for one in speedups if one.busy]:
        lines.append(f"The machine was busy, so repeat when it is quiet: {', '.join(busy)}.")
    return lines


def notebook_of(task: str) -> str:
    """Return the notebook that trains `task`, which is named as in a comparison."""
    return "your_model" if _YOUR_MODEL.search(task) else task


def _speedup(
    comparison: Comparison, title: str, here: Mapping[str, Any], modified: float
) -> Speedup:
    run = comparison.baseline
    there = run.environment
    is_here = all(there.get(name) == here.get(name) for name in ("cpu", "isa", "device", "cores"))
    return Speedup(
        name=notebook_of(comparison.task),
        title=title,
        ratio=comparison.speedup,
        verdict=comparison.verdict,
        conditions=f"{verdict.precision(run)}, {verdict.batch(run)}",
        machine=HERE if is_here else hardware.machine_name(there),
        date=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(modified)),
        code=there.get("git"),
        busy=bool(comparison.load and comparison.load.reasons()),
    )


def own_results(
    folder: Path, titles: Mapping[str, str], here: Mapping[str, Any]
) -> dict[str, Speedup]:
    """Return the newest comparison on one process of each notebook in `titles`.

    Comparisons are read from below `folder`. One of this machine, `here`, counts before a newer one
    of another machine. An unreadable comparison is left out: one that another version wrote is no
    reason to show nothing.
    """
    files = ((path.stat().st_mtime, path) for path in folder.rglob("comparison.json"))
    results: dict[str, Speedup] = {}
    for modified, path in sorted(files, reverse=True)[:_MOST_FILES]:
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
    """The bench of a machine in the repository: all tasks, small inputs, beside every peer."""

    path: Path
    bench: Bench

    @property
    def date(self) -> str:
        """Return the day of the newest task."""
        return max(outcome.date for outcome in self.bench.tasks.values())[:10]

    @property
    def precision(self) -> str:
        """Return the precision of all variants: `fp32`, or `bf16 autocast` for O1 on a CPU."""
        if self.bench.amp_level == "O0":
            return "fp32"
        return "bf16 autocast" if self.bench.environment["device"] == "cpu" else "autocast"

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
        variants = min(len(outcome.rows) for outcome in outcomes)
        return len(outcomes), variants, max(outcome.date for outcome in outcomes)

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
        return (
            (there["device"] == "cpu") == (here["device"] == "cpu"),
            hardware.emulated_bf16(dict(there)) == hardware.emulated_bf16(dict(here)),
            -len(set(there["isa"]) ^ set(here["isa"])),
            -abs(math.log2(there["cores"] / here["cores"])),
            one.date,
            one.path.parent.name,
        )

    found = (committed(folder) for folder in sorted(results.glob("*/")))
    return max((one for one in found if one), key=nearness, default=None)
