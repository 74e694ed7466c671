"""Charts and tables of a replay sweep: gains over plain DDP, and throughput by number of hosts.

Every title says what came out, and what the figures are: a time-dilated replay on an emulated link.
Missing measurements stay in tables and charts, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patheffects import withStroke

from gallery_lib.console.table import Rows, number, rate, seconds
from gallery_lib.measure.replay.sweep import Cell, Sweep
from gallery_lib.report.bench import task_title
from gallery_lib.report.style import OURS, PLAIN, SHADES, Chart, listed, one_panel

REPLAY = "time-dilated replay, emulated link"
NOT_MEASURED = "not measured"
PAYS = 1.1
"""Throughput over that of one host from which more hosts pay.

Runs on one and on several hosts took no turns, so this figure has no interval.
"""
_MARKERS = ("o", "s", "^", "D", "v", "P")
_WIDTH = 0.38


def _hosts(*counts: int) -> str:
    """Return the number of hosts, or several numbers: `1 host`, `2 and 8 hosts`."""
    return f"{listed(map(str, counts))} host" + ("" if counts == (1,) else "s")


def _over_one_host(cell: Cell) -> float | None:
    """Return DDP's throughput over that of one host; None where one host was not measured."""
    return None if cell.ddp_acc is None else cell.hosts * cell.ddp_acc


def _certain_gains(cells: Sequence[Cell]) -> list[Cell]:
    """Return where the chosen strategy is certainly faster than DDP's own."""
    return [cell for cell in cells if cell.ratio.verdict == "faster"]


def cell_rows(sweep: Sweep, missing: Mapping[tuple[str, int], str]) -> Rows:
    """Return the table of every measurement, then what is `missing`, with the reason."""
    interval = "acc_ratio (99 % interval)"
    rows = [["model", "hosts", "ddp_acc", interval, "verdict", "way that was chosen"]]
    for cell in sweep.cells:
        scaling = "not measured on one host" if cell.ddp_acc is None else f"{cell.ddp_acc:.2f}"
        ratio = [str(cell.ratio), cell.ratio.verdict]
        rows.append([_model(cell), str(cell.hosts), scaling, *ratio, cell.chosen])
    rows += [
        [model, str(hosts), NOT_MEASURED, NOT_MEASURED, reason, ""]
        for (model, hosts), reason in missing.items()
    ]
    return rows


def _model(cell: Cell) -> str:
    return cell.model if cell.is_recorded else f"{cell.model} (derived timeline)"


def model_rows(sweep: Sweep) -> Rows:
    """Return for each timeline whether more hosts pay with plain DDP and where the tuner gains."""
    counts = [count for count in sweep.hosts if count > 1]
    over = [f"DDP on {_hosts(count)} over one" for count in counts]
    rows = [["model", *over, "more hosts pay", "tuner gains on"]]
    for cells in (cells for model in sweep.models for cells in sweep.recordings(model)):
        over_one = {cell.hosts: _over_one_host(cell) for cell in cells}
        ratios = {count: ratio for count, ratio in over_one.items() if ratio is not None}
        best = max((ratio for hosts, ratio in ratios.items() if hosts > 1), default=None)
        pays = NOT_MEASURED if best is None else "yes" if best >= PAYS else "no"
        gains = [f"{_hosts(c.hosts)} {c.acc_ratio:.2f}×" for c in _certain_gains(cells)]
        figures = [f"{ratios[n]:.2f}×" if n in ratios else NOT_MEASURED for n in counts]
        rows.append([_model(cells[0]), *figures, pays, ", ".join(gains) or "nowhere"])
    return rows


def scatter(sweep: Sweep, missing: Mapping[tuple[str, int], str]) -> Chart:
    """Return a scatter plot of acc_ratio, with its interval, by ddp_acc.

    Each number of hosts has a shade and a marker. The highest points have names beside them. The
    table has every measurement and what is `missing`.
    """

    def draw(axes: Any) -> None:
        points = [cell for cell in sweep.cells if cell.ddp_acc is not None]
        for place, hosts in enumerate(sweep.hosts):
            own = [cell for cell in points if cell.hosts == hosts]
            axes.errorbar(
                [cell.ddp_acc for cell in own],
                [cell.acc_ratio for cell in own],
                yerr=[
                    [cell.acc_ratio - cell.acc_ratio_low for cell in own],
                    [cell.acc_ratio_high - cell.acc_ratio for cell in own],
                ],
                color=SHADES[place % len(SHADES)],
                fmt=_MARKERS[place % len(_MARKERS)],
                label=_hosts(hosts) if own else f"{_hosts(hosts)}: {NOT_MEASURED}",
                capsize=2,
                alpha=0.8,
            )
        axes.axhline(1.0, color="black", linewidth=1, linestyle=":")
        axes.legend()
        _name_highest(axes, points)

    return one_panel(
        _scatter_title(sweep),
        cell_rows(sweep, missing),
        draw,
        (9.0, 6.0),
        xlabel="ddp_acc: scaling of plain DDP over hosts; named: the highest points",
        ylabel="acc_ratio: accelerated over plain DDP",
    )


def _scatter_title(sweep: Sweep) -> str:
    """Return where the tuner gains most, and where it gains nothing."""
    gains = _certain_gains(sweep.cells)
    if not gains:
        return f"The tuner gains nothing that is certain\n{REPLAY}"
    best = max(gains, key=lambda cell: cell.acc_ratio)
    most = f"{best.acc_ratio:.2f}× ({task_title(best.model)}, {_hosts(best.hosts)})"
    without = sorted({cell.hosts for cell in sweep.cells} - {cell.hosts for cell in gains})
    nothing = f", and nothing on {_hosts(*without)}" if without else ""
    return f"The tuner gains up to {most}{nothing}\n{REPLAY}"


def _name_highest(axes: Any, cells: Sequence[Cell]) -> None:
    """Write a name beside the highest point of each number of hosts, towards the middle."""
    for hosts in sorted({cell.hosts for cell in cells}):
        best = max((c for c in cells if c.hosts == hosts), key=lambda cell: cell.acc_ratio)
        place = best.ddp_acc or 0.0, best.acc_ratio
        left = place[0] < sum(axes.get_xlim()) / 2
        axes.annotate(
            f"{task_title(best.model)}, {_hosts(hosts)}",
            place,
            (6 if left else -6, 5),
            textcoords="offset points",
            ha="left" if left else "right",
            fontsize=7,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )


def throughput(
    cells: Sequence[Cell], hosts: Sequence[int], missing: Mapping[tuple[str, int], str]
) -> Chart:
    """Return a bar chart of throughput by number of hosts: DDP's own way, and the chosen one.

    Throughput is in samples per second of all processes. The chosen way has the interval of the
    ratio.

    Args:
        cells: cells of one timeline.
        hosts: the numbers of hosts that get a place, measured or not.
        missing: why a model was not measured on a number of hosts.
    """
    by_hosts = {cell.hosts: cell for cell in cells}
    header = ["hosts", "DDP", "accelerated", "acc_ratio (99 % interval)"]
    rows = [[*header, "verdict", "ddp_acc", "way that was chosen"]]
    for count in hosts:
        if count not in by_hosts:
            reason = missing.get((cells[0].model, count), "")
            rows.append([str(count), *[NOT_MEASURED] * 3, reason, NOT_MEASURED, ""])
            continue
        cell = by_hosts[count]
        ddp = f"{seconds(cell.ddp_step_seconds)}, {rate(cell.ddp_rate)}"
        ours = f"{seconds(cell.chosen_step_seconds)}, {rate(cell.chosen_rate)}"
        scaling = NOT_MEASURED if cell.ddp_acc is None else f"{cell.ddp_acc:.2f}"
        ratio = [str(cell.ratio), cell.ratio.verdict]
        rows.append([str(count), ddp, ours, *ratio, scaling, cell.chosen])

    def draw(axes: Any) -> None:
        place = {count: slot for slot, count in enumerate(hosts)}
        _draw_bars(axes, cells, place)
        for count in set(hosts) - set(by_hosts):
            note = {"textcoords": "offset points", "ha": "center", "style": "italic"}
            axes.annotate(NOT_MEASURED, (place[count], 0), (0, 4), **note)
        axes.grid(visible=False)
        axes.set_xticks(range(len(hosts)), [_hosts(count) for count in hosts])
        axes.set_xlim(-0.6, len(hosts) - 0.4)
        axes.margins(y=0.2)
        axes.set_ylim(bottom=0)
        axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)

    return one_panel(
        _throughput_title(cells), rows, draw, (8.0, 3.6), ylabel="samples/s, all hosts"
    )


def _throughput_title(cells: Sequence[Cell]) -> str:
    """Return what the most hosts gain over one, and where the tuner gains most."""
    parts = []
    most = max(cells, key=lambda cell: cell.hosts)
    scaled = _over_one_host(most)
    if most.hosts > 1 and scaled is not None:
        parts.append(f"{most.hosts} hosts with DDP train {scaled:.1f}× as fast as one")
    gained = "nothing"
    if gains := _certain_gains(cells):
        best = max(gains, key=lambda cell: cell.acc_ratio)
        gained = f"{best.acc_ratio:.2f}× on {_hosts(best.hosts)}"
    parts.append(f"the tuner gains {gained}")
    derived = "" if cells[0].is_recorded else ", derived timeline"
    return f"{task_title(cells[0].model)}: {'; '.join(parts)}\n{REPLAY}{derived}"


def _draw_bars(axes: Any, cells: Sequence[Cell], place: Mapping[int, int]) -> None:
    """Draw two bars for each number of hosts, with their names, and the ratio above the second."""
    left, right = ([place[cell.hosts] + side * _WIDTH / 2 for cell in cells] for side in (-1, 1))
    ddp = axes.bar(left, [cell.ddp_rate for cell in cells], _WIDTH, color=PLAIN, label="DDP")
    axes.bar_label(ddp, [f"DDP\n{number(cell.ddp_rate)}" for cell in cells], fontsize="x-small")
    axes.bar(
        right,
        [cell.chosen_rate for cell in cells],
        _WIDTH,
        color=OURS,
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
