"""Plots of a replay sweep: gains by how well plain DDP scales, and throughput by number of hosts.

The gains are those of other ways than DDP's own. Throughput is shown model by model. As in
plots.py, each plot has its alternative text and the rows of a table with the same content. Every
title says what the figures are: a time-dilated replay on an emulated link. Missing measurements
stay in tables and charts, by name.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, rate, seconds
from gallery_lib.measure.replay.sweep import Cell, Sweep

REPLAY = "time-dilated replay, emulated link"
NOT_MEASURED = "not measured"
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
"""Okabe-Ito palette.

The first four, blue, orange, red and green, are for 1, 2, 4 and 8 hosts.
"""
MARKERS = ("o", "s", "^", "D", "v", "P")
_WIDTH = 0.38


def _hosts(count: int) -> str:
    return f"{count} host" + ("" if count == 1 else "s")


def _gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def _of(cell: Cell) -> str:
    return f"{cell.model}, {_hosts(cell.hosts)}"


# --------------------------------------------------------------------------------------------------
# All models


def _points(sweep: Sweep) -> list[Cell]:
    """Return the cells that have both coordinates of the scatter plot."""
    return [cell for cell in sweep.cells if cell.ddp_acc is not None]


def scatter(sweep: Sweep) -> Figure:
    """Return a scatter plot of acc_ratio, with its interval, by ddp_acc.

    Each number of hosts has a colour and a marker.
    """
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
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
            label=_hosts(hosts) if own else f"{_hosts(hosts)}: {NOT_MEASURED}",
            capsize=2,
            alpha=0.8,
        )
    axes.axhline(1.0, color="black", linewidth=1, linestyle=":")
    axes.set(
        title=f"DDP's scaling and what is gained; {REPLAY}",
        xlabel="ddp_acc: scaling of plain DDP over hosts",
    )
    axes.set_ylabel("acc_ratio: accelerated over plain DDP")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def scatter_text(sweep: Sweep) -> str:
    """Return the alternative text of `scatter`."""
    points = _points(sweep)
    parts = []
    for hosts in sweep.hosts:
        own = [cell for cell in points if cell.hosts == hosts]
        if not own:
            parts.append(f"{_hosts(hosts)}: {NOT_MEASURED}")
            continue
        scaling, ratios = [cell.ddp_acc or 0.0 for cell in own], [cell.acc_ratio for cell in own]
        across = f"ddp_acc {min(scaling):.2f} to {max(scaling):.2f}"
        parts.append(
            f"{_hosts(hosts)}: {len(own)} points, {across}, acc_ratio {min(ratios):.2f} to "
            f"{max(ratios):.2f}"
        )
    return (
        f"Scatter plot of acc_ratio by ddp_acc, {len(points)} points with intervals, {REPLAY}. "
        f"{'; '.join(parts)}."
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


def gains_text(sweep: Sweep) -> str:
    """Return the range of acc_ratio, and whether it is higher where DDP scales worse."""
    ordered = sorted(sweep.cells, key=lambda cell: cell.acc_ratio)
    ends = " to ".join(f"{cell.ratio} ({_of(cell)})" for cell in (ordered[0], ordered[-1]))
    gains = f"gains of {_gain(ordered[0].acc_ratio)} to {_gain(ordered[-1].acc_ratio)}"
    text = f"acc_ratio of {len(ordered)} measurements: {ends}; {gains}."
    several = sorted(
        (cell for cell in _points(sweep) if cell.hosts > 1), key=lambda cell: cell.ddp_acc or 0.0
    )
    if len(several) < 4:
        return text
    halves = several[: len(several) // 2], several[len(several) // 2 :]
    lower, higher = (statistics.median(cell.acc_ratio for cell in half) for half in halves)
    return (
        f"{text} On several hosts, the half with the lower ddp_acc has a median acc_ratio of "
        f"{lower:.2f}, the other half {higher:.2f}."
    )


def gains_rows(sweep: Sweep) -> Rows:
    """Return a table of acc_ratio by number of hosts."""
    rows = [
        [
            "hosts",
            "measured",
            "lowest acc_ratio",
            "median",
            "highest",
            "faster",
            "no measurable difference",
            "slower",
        ]
    ]
    for hosts in sweep.hosts:
        own = sorted(
            (cell for cell in sweep.cells if cell.hosts == hosts), key=lambda cell: cell.acc_ratio
        )
        if not own:
            rows.append([str(hosts), "0", *[NOT_MEASURED] * 6])
            continue
        verdicts = [cell.ratio.verdict for cell in own]
        low, high = (f"{cell.ratio}, {cell.model}" for cell in (own[0], own[-1]))
        counts = [
            str(verdicts.count(verdict))
            for verdict in ("faster", "no measurable difference", "slower")
        ]
        rows.append(
            [
                str(hosts),
                str(len(own)),
                low,
                f"{statistics.median(cell.acc_ratio for cell in own):.2f}",
                high,
                *counts,
            ]
        )
    return rows


# --------------------------------------------------------------------------------------------------
# One model


def throughput(cells: Sequence[Cell], hosts: Sequence[int]) -> Figure:
    """Return a bar chart of throughput by number of hosts: DDP's own way, and the chosen one.

    Throughput is in samples per second of all processes. The chosen way has the interval of the
    ratio.

    Args:
        cells: cells of one timeline.
        hosts: the numbers of hosts that get a place, measured or not.
    """
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    axes = figure.subplots()
    place = {count: number for number, count in enumerate(hosts)}
    left, right = ([place[cell.hosts] + side * _WIDTH / 2 for cell in cells] for side in (-1, 1))
    axes.bar(left, [cell.ddp_rate for cell in cells], _WIDTH, color=COLOURS[0], label="DDP")
    axes.bar(
        right,
        [cell.chosen_rate for cell in cells],
        _WIDTH,
        color=COLOURS[2],
        hatch="//",
        edgecolor="white",
        label="accelerated",
    )
    for x, cell in zip(right, cells, strict=True):
        ends = [cell.ddp_rate * end for end in (cell.acc_ratio_low, cell.acc_ratio_high)]
        axes.plot([x, x], ends, color="black", marker="_")
        axes.annotate(
            f"{cell.acc_ratio:.2f}×",
            (x, max(*ends, cell.chosen_rate)),
            (0, 3),
            textcoords="offset points",
            ha="center",
        )
    for count in set(hosts) - {cell.hosts for cell in cells}:
        axes.annotate(
            NOT_MEASURED,
            (place[count], 0),
            (0, 4),
            textcoords="offset points",
            ha="center",
            style="italic",
        )
    axes.set_xticks(range(len(hosts)), [_hosts(count) for count in hosts])
    axes.set_xlim(-0.6, len(hosts) - 0.4)
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    derived = "" if cells[0].is_recorded else ", derived timeline"
    axes.set(title=f"{cells[0].model}{derived}; {REPLAY}", ylabel="samples/s, all hosts")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def throughput_text(cells: Sequence[Cell], hosts: Sequence[int]) -> str:
    """Return the alternative text of `throughput`."""
    by_hosts = {cell.hosts: cell for cell in cells}
    parts = []
    for count in hosts:
        if count in by_hosts:
            cell = by_hosts[count]
            rates = f"DDP {rate(cell.ddp_rate)}, accelerated {rate(cell.chosen_rate)}, {cell.ratio}"
            parts.append(f"{_hosts(count)}: {rates}")
        else:
            parts.append(f"{_hosts(count)}: {NOT_MEASURED}")
    return (
        f"Bar chart of {cells[0].model}'s throughput by number of hosts, {REPLAY}. "
        f"{'; '.join(parts)}."
    )


def throughput_rows(
    cells: Sequence[Cell], hosts: Sequence[int], missing: Mapping[tuple[str, int], str]
) -> Rows:
    """Return the table of `throughput`, with step times (p50)."""
    rows = [
        [
            "hosts",
            "DDP",
            "accelerated",
            "acc_ratio (99 % interval)",
            "verdict",
            "ddp_acc",
            "way that was chosen",
        ]
    ]
    by_hosts = {cell.hosts: cell for cell in cells}
    for count in hosts:
        if count not in by_hosts:
            rows.append(
                [
                    str(count),
                    *[NOT_MEASURED] * 3,
                    missing.get((cells[0].model, count), ""),
                    NOT_MEASURED,
                    "",
                ]
            )
            continue
        cell = by_hosts[count]
        ddp = f"{seconds(cell.ddp_step_seconds)}, {rate(cell.ddp_rate)}"
        ours = f"{seconds(cell.chosen_step_seconds)}, {rate(cell.chosen_rate)}"
        scaling = NOT_MEASURED if cell.ddp_acc is None else f"{cell.ddp_acc:.2f}"
        rows.append(
            [str(count), ddp, ours, str(cell.ratio), cell.ratio.verdict, scaling, cell.chosen]
        )
    return rows
