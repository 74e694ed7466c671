"""What to do with a sweep: for which models more hosts pay, and for which the tuner gains."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib.console.table import Rows
from gallery_lib.measure.replay.sweep import Cell, Sweep
from gallery_lib.report.replay import NOT_MEASURED, hosts_in_words, is_certain_gain, over_one_host
from gallery_lib.report.sentences import listed

PAYS = 1.1
"""Throughput over that of one host from which more hosts pay.

Runs on one and on several hosts took no turns, so this figure has no interval.
"""


def _recordings(sweep: Sweep) -> list[Sequence[Cell]]:
    return [cells for model in sweep.models for cells in sweep.recordings(model)]


def _best(cells: Sequence[Cell]) -> tuple[float, int] | None:
    """Return DDP's highest throughput over one host and its hosts; None where not measured."""
    found = [(over, cell.hosts) for cell in cells if (over := over_one_host(cell)) is not None]
    several = [pair for pair in found if pair[1] > 1]
    return max(several, default=None)


def _gains(cells: Sequence[Cell]) -> str:
    """Return where the tuner certainly gains, and how much: `2 hosts 1.25×`."""
    gains = [
        f"{hosts_in_words(cell.hosts)} {cell.acc_ratio:.2f}×"
        for cell in cells
        if is_certain_gain(cell)
    ]
    return ", ".join(gains) or "nowhere"


def advice_rows(sweep: Sweep) -> Rows:
    """Return a table of DDP's throughput over that of one host, and of where the tuner gains.

    It has a row for each timeline.
    """
    counts = [count for count in sweep.hosts if count > 1]
    header = [
        "model",
        *(f"DDP on {hosts_in_words(count)} over one" for count in counts),
        "more hosts pay",
        "tuner gains on",
    ]
    rows = [header]
    for cells in _recordings(sweep):
        over = {cell.hosts: over_one_host(cell) for cell in cells}
        ratios = [over.get(count) for count in counts]
        best = _best(cells)
        pays = NOT_MEASURED if best is None else "yes" if best[0] >= PAYS else "no"
        name = cells[0].model if cells[0].is_recorded else f"{cells[0].model} (derived timeline)"
        figures = [NOT_MEASURED if ratio is None else f"{ratio:.2f}×" for ratio in ratios]
        rows.append([name, *figures, pays, _gains(cells)])
    return rows


def advice_text(sweep: Sweep) -> str:
    """Return for which models to add hosts with plain DDP, and where to use the tuner."""
    if not sweep.cells:
        return "Choose nothing by this sweep: nothing was measured in it."
    return f"{_hosts_advice(sweep)} {_tuner_advice(sweep)}"


def _hosts_advice(sweep: Sweep) -> str:
    best = [(cells[0].model, pair) for cells in _recordings(sweep) if (pair := _best(cells))]
    if not best:
        return "Whether more hosts pay was not measured: that takes one host and several."
    best.sort(key=lambda item: -item[1][0])
    paying = [f"{model} ({over:.1f}× on {hosts})" for model, (over, hosts) in best if over >= PAYS]
    others = [model for model, (over, _) in best if over < PAYS]
    parts = []
    if paying:
        parts.append(
            f"With plain DDP, use more hosts for {listed(paying)}: all hosts together train at "
            f"least {PAYS}× as fast as one."
        )
    if paying and (slower := _slower_counts(sweep)):
        parts.append(f"Not {hosts_in_words(*slower)}, which are slower than one for each model.")
    if others:
        parts.append(
            f"Stay on one host with {listed(others, 'or')}: plain DDP on more does not reach "
            f"{PAYS}×."
        )
    return " ".join(parts)


def _slower_counts(sweep: Sweep) -> list[int]:
    """Return the numbers of hosts on which plain DDP is slower than one host for each model."""
    over: dict[int, list[float]] = {}
    for cell in sweep.cells:
        if cell.hosts > 1 and (ratio := over_one_host(cell)) is not None:
            over.setdefault(cell.hosts, []).append(ratio)
    return [count for count in sorted(over) if max(over[count]) < 1]


def _tuner_advice(sweep: Sweep) -> str:
    """Return on how many hosts to use the tuner, with the number of models that gain there."""
    gaining, idle = [], []
    for count in sorted({cell.hosts for cell in sweep.cells}):
        cells = [cell for cell in sweep.cells if cell.hosts == count]
        gains = [cell.acc_ratio for cell in cells if is_certain_gain(cell)]
        if gains:
            of_all = f"{len(gains)} of {len(cells)} gain"
            gaining.append(f"{hosts_in_words(count)} ({of_all}, up to {max(gains):.2f}×)")
        else:
            idle.append(count)
    if not gaining:
        return "Leave the tuner out: it gains nothing that is certain on any number of hosts."
    text = f"Use the tuner on {listed(gaining)}."
    if idle:
        text += f" On {hosts_in_words(*idle)} it gains nothing that is certain: leave it out there."
    return text
