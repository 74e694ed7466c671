"""Plot of all models: what is gained over plain DDP, by how well DDP scales."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows
from gallery_lib.measure.replay.sweep import Cell, Sweep
from gallery_lib.report.point_names import Point, name_points
from gallery_lib.report.replay import (
    COLOURS,
    NOT_MEASURED,
    REPLAY,
    hosts_in_words,
    is_certain_gain,
    name_of,
)
from gallery_lib.report.sentences import sentence

MARKERS = ("o", "s", "^", "D", "v", "P")
_SAME_PLACE = 2
"""Decimals in which points agree that share one name."""


def _points(sweep: Sweep) -> list[Cell]:
    """Return the cells that have both coordinates of the scatter plot."""
    return [cell for cell in sweep.cells if cell.ddp_acc is not None]


def scatter_title(sweep: Sweep) -> str:
    """Return what the points say: where the tuner gains most, and where it gains nothing."""
    gains = [cell for cell in sweep.cells if is_certain_gain(cell)]
    if not gains:
        return f"The tuner gains nothing that is certain\n{REPLAY}"
    best = max(gains, key=lambda cell: cell.acc_ratio)
    most = f"The tuner gains up to {best.acc_ratio:.2f}× ({name_of(best)})"
    measured, gained = ({cell.hosts for cell in cells} for cells in (sweep.cells, gains))
    without = sorted(measured - gained)
    nothing = f", and nothing on {hosts_in_words(*without)}" if without else ""
    return f"{most}{nothing}\n{REPLAY}"


def scatter(sweep: Sweep) -> Figure:
    """Return a scatter plot of acc_ratio, with its interval, by ddp_acc.

    Each number of hosts has a colour and a marker. The outermost points have their names beside
    them, and others where there is room.
    """
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    axes = figure.subplots()
    for number, hosts in enumerate(sweep.hosts):
        own = [cell for cell in _points(sweep) if cell.hosts == hosts]
        axes.errorbar(
            [cell.ddp_acc or 0.0 for cell in own],
            [cell.acc_ratio for cell in own],
            yerr=[
                [cell.acc_ratio - cell.acc_ratio_low for cell in own],
                [cell.acc_ratio_high - cell.acc_ratio for cell in own],
            ],
            color=COLOURS[number % len(COLOURS)],
            fmt=MARKERS[number % len(MARKERS)],
            label=hosts_in_words(hosts) if own else f"{hosts_in_words(hosts)}: {NOT_MEASURED}",
            capsize=2,
            alpha=0.8,
        )
    axes.axhline(1.0, color="black", linewidth=1, linestyle=":")
    axes.set(
        title=scatter_title(sweep),
        xlabel=(
            "ddp_acc: scaling of plain DDP over hosts; "
            "named: the outermost points, others where there is room"
        ),
    )
    axes.set_ylabel("acc_ratio: accelerated over plain DDP")
    axes.grid(alpha=0.3)
    axes.legend()
    name_points(axes, _named(_points(sweep)), line=1.0)
    return figure


def _named(cells: list[Cell]) -> list[Point]:
    """Return a point for each place, named after its model or the models that share it."""
    places: dict[tuple[float, float], list[Cell]] = {}
    for cell in cells:
        place = round(cell.ddp_acc or 0.0, _SAME_PLACE), round(cell.acc_ratio, _SAME_PLACE)
        places.setdefault(place, []).append(cell)
    return [Point(own[0].ddp_acc or 0.0, own[0].acc_ratio, _name(own)) for own in places.values()]


def _name(cells: list[Cell]) -> str:
    first, *others = cells
    if not others:
        return name_of(first)
    hosts = hosts_in_words(*sorted({cell.hosts for cell in cells}))
    return f"{first.model} and {len(others)} more, {hosts}"


def scatter_text(sweep: Sweep) -> str:
    """Return the alternative text of `scatter`."""
    points = _points(sweep)
    parts = []
    for hosts in sweep.hosts:
        own = [cell for cell in points if cell.hosts == hosts]
        if not own:
            parts.append(f"{hosts_in_words(hosts)}: {NOT_MEASURED}")
            continue
        scaling, ratios = [cell.ddp_acc or 0.0 for cell in own], [cell.acc_ratio for cell in own]
        across = f"ddp_acc {min(scaling):.2f} to {max(scaling):.2f}"
        parts.append(
            f"{hosts_in_words(hosts)}: {len(own)} points, {across}, acc_ratio {min(ratios):.2f} to "
            f"{max(ratios):.2f}"
        )
    return (
        f"Scatter plot of acc_ratio by ddp_acc, {len(points)} points with intervals, {REPLAY}. "
        f"{'; '.join(parts)}. {sentence(scatter_title(sweep))}"
    )


def scatter_rows(sweep: Sweep, missing: Mapping[tuple[str, int], str]) -> Rows:
    """Return the table of `scatter`: every point, then what is `missing`, with the reason."""
    rows = [
        ["model", "hosts", "ddp_acc", "acc_ratio (99 % interval)", "verdict", "way that was chosen"]
    ]
    for cell in sweep.cells:
        scaling = "not measured on one host" if cell.ddp_acc is None else f"{cell.ddp_acc:.2f}"
        name = cell.model if cell.is_recorded else f"{cell.model} (derived timeline)"
        rows.append(
            [name, str(cell.hosts), scaling, str(cell.ratio), cell.ratio.verdict, cell.chosen]
        )
    rows += [
        [model, str(hosts), NOT_MEASURED, NOT_MEASURED, reason, ""]
        for (model, hosts), reason in missing.items()
    ]
    return rows
