"""Speed-ups of several notebooks as a picture and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gallery_lib.report import style
from gallery_lib.report.chart import Chart
from gallery_lib.stats import Ratio

HERE = "this machine"


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
    rows = [["notebook", "speed-up (interval)", "measured with", "measured on", "date"]]
    rows += [
        [f"[{s.title}]({s.name}.ipynb)", s.in_words, s.conditions, s.machine, s.date[:10]]
        for s in speedups
    ]
    elsewhere = any(one.machine != HERE for one in speedups)
    title = "Accelerated backend over PyTorch eager" + (
        "; hatched: another machine" if elsewhere else ""
    )
    bars = [
        style.Bar(one.title, one.ratio, one.verdict, "///" if one.machine != HERE else None)
        for one in sorted(speedups, key=lambda one: -one.ratio.ratio if one.ratio else 0.0)
    ]
    return Chart(title, rows, lambda: style.ratio_bars(bars, title, "PyTorch eager")[0])
