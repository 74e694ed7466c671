"""Figure and tables of replayed trainings on 1 to 8 hosts, read from a table that was measured.

The table (CSV) has a line for each model on each number of hosts. Its figures are those of a
time-dilated replay on an emulated link, and every title says so.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.text import Rows, rate
from gallery_lib.errors import InputError
from gallery_lib.report.bench import task_title
from gallery_lib.report.style import SHADES, Chart, one_panel
from gallery_lib.stats import Ratio

REPLAY = "time-dilated replay, emulated link"
PAYS = 1.1
"""Throughput over that of one host from which more hosts pay."""
_MARKERS = ("o", "s", "^", "D", "v", "P")


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
