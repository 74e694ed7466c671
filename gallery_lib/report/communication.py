"""Charts and tables of communication: step times, parity, what was learned, and replays.

A title says what came out. One from a lab of hosts says that the links are emulated.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gallery_lib.console.text import Rows, rate, seconds
from gallery_lib.errors import InputError
from gallery_lib.report import style
from gallery_lib.report.bench import task_title
from gallery_lib.report.style import OURS, SHADES, Chart, one_panel
from gallery_lib.stats import CONFIDENCE, Ratio

if TYPE_CHECKING:  # what measures needs torch, and the table of replays does not
    from gallery_lib.measure.communication.convergence import Scores
    from gallery_lib.measure.communication.strategies import Effect, Effects

EMULATED = "emulated link"  # what titles and tables call the links of a lab
REPLAY = "time-dilated replay, emulated link"
PAYS = 1.1  # throughput over that of one host from which more hosts pay
_MARKERS = ("o", "s", "^", "D", "v", "P")


def _is_lossy(effect: Effect) -> bool:
    """Return whether the technique rounds gradients, and so changes what is computed."""
    return bool(effect.options["wire"] != "exact")


def _step_times_title(effects: Effects) -> str:
    """Return what is certainly faster than DDP's own way, with gradients that are right."""
    from gallery_lib.measure.communication.strategies import ALONE, PLAIN

    gains = [
        (effect.ratio.ratio, name)
        for name, effect in effects.ways.items()
        if name not in (PLAIN, ALONE) and not effect.parity.startswith("FAILED")
        if effect.ratio and effect.ratio.verdict == "faster"
    ]
    gained = "no technique gains"
    if gains:
        ratio, name = max(gains)
        gained = f"{name} gains most, {ratio:.2f}×"
    took = seconds(effects.ways[PLAIN].seconds)
    return f"A step of {PLAIN}'s own way takes {took}; {gained}\n{effects.hosts}, {EMULATED}"


def step_times(effects: Effects) -> Chart:
    """Return the chart and table of step times, a row for each technique.

    A bar is the median, a mark one step. The table has the ratio of DDP's own step time to that of
    the technique, with its interval and verdict.
    """
    from gallery_lib.measure.communication.strategies import ALONE, PLAIN

    interval = f"{CONFIDENCE:.0%} interval"
    rows = [
        [f"technique ({EMULATED})", "step time, median", f"{PLAIN} over it ({interval})", "verdict"]
    ]
    for name, effect in effects.ways.items():
        ratio = effect.ratio
        comparison = [str(ratio), ratio.verdict] if ratio else ["1, by definition", "baseline"]
        rows.append([name, seconds(effect.seconds), *comparison])

    def draw(axes: Any) -> None:
        for row, (name, effect) in enumerate(effects.ways.items()):
            axes.barh(
                row,
                1000 * effect.seconds,
                color={ALONE: style.OTHERS, PLAIN: style.PLAIN}.get(name, OURS),
                hatch="//" if _is_lossy(effect) else None,
                edgecolor="white",
            )
            milliseconds = [1000 * step for steps in effect.rounds for step in steps]
            axes.plot(milliseconds, np.full(len(milliseconds), row), "k|", markersize=9)
            label = seconds(effect.seconds)
            label += "" if effect.ratio is None else f", {effect.ratio.ratio:.2f}×"
            end = (max(milliseconds), row)
            axes.annotate(label, end, (6, 0), textcoords="offset points", va="center")
        names = [f"{name}, rounds" if _is_lossy(e) else name for name, e in effects.ways.items()]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False)
        longest = max(max(steps) for effect in effects.ways.values() for steps in effect.rounds)
        axes.set_xlim(0, 1.4 * 1000 * longest)  # leaves room for the labels

    return one_panel(
        _step_times_title(effects),
        rows,
        draw,
        (7.0, 1.3 + 0.45 * len(effects.ways)),
        xlabel="ms; a mark for each step; hatched: the wire format rounds",
    )


def parity_rows(effects: Effects) -> Rows:
    """Return a table of what each technique sends, and how far its gradients are off.

    The error of a gradient is its distance from the mean in float64.
    """
    from gallery_lib.measure.communication.strategies import ALONE

    header = [f"technique ({EMULATED})", "sent by a host in a step"]
    rows = [[*header, "error of the gradient", "limit", "parity"]]
    for name, effect in effects.ways.items():
        error, limit = (
            "–" if value is None else f"{value:.1g}"
            for value in (effect.gradient_error, None if name == ALONE else effect.limit)
        )
        sent = effect.sent_bytes
        counted = "not counted" if sent is None else f"{sent / 2**20:.2f} MiB"
        rows.append([name, counted, error, limit, effect.parity])
    return rows


def learned_rows(scores: Scores) -> Rows:
    """Return a table of each wire format's accuracy, with the noise of means over the seeds."""
    from gallery_lib.measure.communication.convergence import FP32

    header = ["wire format", "held-out accuracy", "of each seed"]
    return [
        [*header, f"less {FP32}", "noise", "verdict"],
        *(
            [
                name,
                f"{statistics.mean(values):.3f}",
                ", ".join(f"{value:.3f}" for value in values),
                *(f"{scores.difference(name):+.3f}", f"± {scores.noise:.3f}"),
                scores.verdict(name),
            ]
            for name, values in scores.by_format.items()
        ),
    ]


# --------------------------------------------------------------------------------------------------
# Replayed trainings on 1 to 8 hosts, read from a table (CSV) that was measured: a line for each
# model on each number of hosts. Figures are those of a time-dilated replay on an emulated link.


@dataclass(frozen=True)
class Cell:
    """One model on one number of hosts: columns of a line of the table."""

    model: str
    hosts: int
    ranks: int  # processes on each host
    batch_size: int  # samples a step of one process
    timeline: str  # `recorded`, or from what it was derived, and how
    ddp_step_seconds: float
    chosen: str  # the tuner's strategy; DDP's own where no other was certainly faster
    chosen_step_seconds: float
    acc_ratio: float  # DDP's step time over that of the chosen strategy, in turns
    acc_ratio_low: float
    acc_ratio_high: float
    ddp_acc: float  # DDP's own step time on one host over that on these

    def __post_init__(self) -> None:
        Ratio(self.acc_ratio, self.acc_ratio_low, self.acc_ratio_high)  # refuses what is none

    @property
    def ratio(self) -> Ratio:
        """Return acc_ratio with its interval."""
        return Ratio(self.acc_ratio, self.acc_ratio_low, self.acc_ratio_high)

    def samples_per_second(self, step_seconds: float) -> float:
        """Return the throughput of all processes with steps of this length."""
        return self.hosts * self.ranks * self.batch_size / step_seconds


def read_cells(path: Path) -> list[Cell]:
    """Return the lines of the table; InputError for what is no such table."""
    kinds = {"str": str, "int": int, "float": float}
    fields = {field.name: kinds[str(field.type)] for field in dataclasses.fields(Cell)}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                Cell(**{name: kind(line[name]) for name, kind in fields.items()})
                for line in csv.DictReader(file, strict=True)
            ]
    except (OSError, LookupError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"table={path} is no table of replayed trainings ({type(error).__name__}: {error}).",
            parameter="table",
        ) from None


def cell_rows(cells: Sequence[Cell]) -> Rows:
    """Return every measurement: the samples per second of all hosts together, and their ratio."""
    header = ["model", "hosts", "DDP", "accelerated", "acc_ratio (99 % interval)", "verdict"]
    return [
        [*header, "ddp_acc", "way that was chosen"],
        *(
            [
                cell.model,
                str(cell.hosts),
                rate(cell.samples_per_second(cell.ddp_step_seconds)),
                rate(cell.samples_per_second(cell.chosen_step_seconds)),
                *(str(cell.ratio), cell.ratio.verdict, f"{cell.ddp_acc:.2f}", cell.chosen),
            ]
            for cell in cells
        ),
    ]


def model_rows(cells: Sequence[Cell]) -> Rows:
    """Return for each model whether more hosts pay with plain DDP and where the tuner gains."""
    rows = [["model", "DDP on several hosts over one", "more hosts pay", "tuner gains on"]]
    for model in dict.fromkeys(cell.model for cell in cells):
        own = [cell for cell in cells if cell.model == model]
        over_one = {cell.hosts: cell.hosts * cell.ddp_acc for cell in own if cell.hosts > 1}
        figures = ", ".join(f"{hosts} hosts {ratio:.2f}×" for hosts, ratio in over_one.items())
        pays = "yes" if max(over_one.values(), default=0.0) >= PAYS else "no"
        gains = [f"{_hosts(c)} {c.acc_ratio:.2f}×" for c in own if c.ratio.verdict == "faster"]
        rows.append([model, figures, pays, ", ".join(gains) or "nowhere"])
    return rows


def _hosts(cell: Cell) -> str:
    return f"{cell.hosts} host{'' if cell.hosts == 1 else 's'}"


def scatter(cells: Sequence[Cell]) -> Chart:
    """Return acc_ratio, with its interval, by ddp_acc: a shade and marker by number of hosts."""
    gains = [cell for cell in cells if cell.ratio.verdict == "faster"]
    title = "The tuner gains nothing that is certain"
    if gains:
        best = max(gains, key=lambda cell: cell.acc_ratio)
        where = f"{task_title(best.model)}, {_hosts(best)}"
        title = f"The tuner gains up to {best.acc_ratio:.2f}× ({where})"

    def draw(axes: Any) -> None:
        for place, hosts in enumerate(sorted({cell.hosts for cell in cells})):
            own = [cell for cell in cells if cell.hosts == hosts]
            axes.errorbar(
                [cell.ddp_acc for cell in own],
                [cell.acc_ratio for cell in own],
                yerr=[
                    [cell.acc_ratio - cell.acc_ratio_low for cell in own],
                    [cell.acc_ratio_high - cell.acc_ratio for cell in own],
                ],
                color=SHADES[place % len(SHADES)],
                fmt=_MARKERS[place % len(_MARKERS)],
                label=_hosts(own[0]),
                capsize=2,
                alpha=0.8,
            )
        axes.axhline(1.0, color="black", linewidth=1, linestyle=":")
        axes.legend()

    return one_panel(
        f"{title}\n{REPLAY}",
        cell_rows(cells),
        draw,
        (9.0, 6.0),
        xlabel="ddp_acc: scaling of plain DDP over hosts",
        ylabel="acc_ratio: accelerated over plain DDP",
    )
