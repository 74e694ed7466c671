"""Plot of one model's throughput by number of hosts: DDP's own strategy, and the chosen one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, number, rate, seconds
from gallery_lib.measure.replay.sweep import Cell
from gallery_lib.report.replay import (
    COLOURS,
    NOT_MEASURED,
    REPLAY,
    hosts_in_words,
    is_certain_gain,
    over_one_host,
)
from gallery_lib.report.sentences import sentence

_WIDTH = 0.38


def throughput_title(cells: Sequence[Cell]) -> str:
    """Return what the bars say: what the most hosts gain over one, and where the tuner gains.

    Args:
        cells: cells of one timeline.
    """
    parts = []
    most = max(cells, key=lambda cell: cell.hosts)
    scaled = over_one_host(most)
    if most.hosts > 1 and scaled is not None:
        parts.append(f"{most.hosts} hosts with DDP train {scaled:.1f}× as fast as one")
    gains = [cell for cell in cells if is_certain_gain(cell)]
    if gains:
        best = max(gains, key=lambda cell: cell.acc_ratio)
        parts.append(f"the tuner gains {best.acc_ratio:.2f}× on {hosts_in_words(best.hosts)}")
    else:
        parts.append("the tuner gains nothing")
    derived = "" if cells[0].is_recorded else ", derived timeline"
    return f"{cells[0].model}: {'; '.join(parts)}\n{REPLAY}{derived}"


def throughput(cells: Sequence[Cell], hosts: Sequence[int]) -> Figure:
    """Return a bar chart of throughput by number of hosts: DDP's own way, and the chosen one.

    Throughput is in samples per second of all processes. The chosen way has the interval of the
    ratio.

    Args:
        cells: cells of one timeline.
        hosts: the numbers of hosts that get a place, measured or not.
    """
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    axes = figure.subplots()
    place = {count: slot for slot, count in enumerate(hosts)}
    _draw_bars(axes, cells, place)
    for count in set(hosts) - {cell.hosts for cell in cells}:
        axes.annotate(
            NOT_MEASURED,
            (place[count], 0),
            (0, 4),
            textcoords="offset points",
            ha="center",
            style="italic",
        )
    axes.set_xticks(range(len(hosts)), [hosts_in_words(count) for count in hosts])
    axes.set_xlim(-0.6, len(hosts) - 0.4)
    axes.margins(y=0.2)
    axes.set_ylim(bottom=0)
    axes.set_title(throughput_title(cells), fontsize="medium")
    axes.set_ylabel("samples/s, all hosts")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_bars(axes: Any, cells: Sequence[Cell], place: Mapping[int, int]) -> None:
    """Draw two bars for each number of hosts, with their names, and the ratio above the second."""
    left, right = ([place[cell.hosts] + side * _WIDTH / 2 for cell in cells] for side in (-1, 1))
    ddp = axes.bar(left, [cell.ddp_rate for cell in cells], _WIDTH, color=COLOURS[0], label="DDP")
    axes.bar_label(ddp, [f"DDP\n{number(cell.ddp_rate)}" for cell in cells], fontsize="x-small")
    axes.bar(
        right,
        [cell.chosen_rate for cell in cells],
        _WIDTH,
        color=COLOURS[2],
        hatch="//",
        edgecolor="white",
        label="accelerated: the tuner's choice",
    )
    for x, cell in zip(right, cells, strict=True):
        ends = [cell.ddp_rate * end for end in (cell.acc_ratio_low, cell.acc_ratio_high)]
        axes.plot([x, x], ends, color="black", marker="_")
        axes.annotate(
            f"tuner\n{cell.acc_ratio:.2f}×",
            (x, max(*ends, cell.chosen_rate)),
            (0, 3),
            textcoords="offset points",
            ha="center",
            fontsize="x-small",
        )


def throughput_text(cells: Sequence[Cell], hosts: Sequence[int]) -> str:
    """Return the alternative text of `throughput`."""
    by_hosts = {cell.hosts: cell for cell in cells}
    parts = []
    for count in hosts:
        if count in by_hosts:
            cell = by_hosts[count]
            rates = f"DDP {rate(cell.ddp_rate)}, accelerated {rate(cell.chosen_rate)}, {cell.ratio}"
            parts.append(f"{hosts_in_words(count)}: {rates}")
        else:
            parts.append(f"{hosts_in_words(count)}: {NOT_MEASURED}")
    return (
        f"Bar chart of {cells[0].model}'s throughput by number of hosts, {REPLAY}. "
        f"{'; '.join(parts)}. {sentence(throughput_title(cells))}"
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
