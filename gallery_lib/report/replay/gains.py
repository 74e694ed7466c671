"""Range of what is gained over plain DDP, in a sentence and by number of hosts."""

from __future__ import annotations

import statistics

from gallery_lib.console.table import Rows
from gallery_lib.measure.replay.sweep import Sweep
from gallery_lib.report.replay import NOT_MEASURED, name_of


def _gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def gains_text(sweep: Sweep) -> str:
    """Return the range of acc_ratio, and whether it is higher where DDP scales worse."""
    ordered = sorted(sweep.cells, key=lambda cell: cell.acc_ratio)
    ends = " to ".join(f"{cell.ratio} ({name_of(cell)})" for cell in (ordered[0], ordered[-1]))
    gains = f"gains of {_gain(ordered[0].acc_ratio)} to {_gain(ordered[-1].acc_ratio)}"
    text = f"acc_ratio of {len(ordered)} measurements: {ends}; {gains}."
    several = sorted(
        (cell for cell in sweep.cells if cell.hosts > 1 and cell.ddp_acc is not None),
        key=lambda cell: cell.ddp_acc or 0.0,
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
