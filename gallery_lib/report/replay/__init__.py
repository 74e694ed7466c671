"""Plots of a replay sweep: gains by how well plain DDP scales, and throughput by number of hosts.

The gains are those of other strategies than DDP's own. Throughput is shown model by model. As in
report/plots.py, each plot has its alternative text and the rows of a table with the same content.
Every title says what came out, and what the figures are: a time-dilated replay on an emulated link.
Missing measurements stay in tables and charts, by name. `advice` says what to do with it all.
"""

from __future__ import annotations

from gallery_lib.measure.replay.sweep import Cell
from gallery_lib.report.sentences import listed

REPLAY = "time-dilated replay, emulated link"
NOT_MEASURED = "not measured"
COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
"""Okabe-Ito palette.

The first four, blue, orange, red and green, are for 1, 2, 4 and 8 hosts.
"""


def hosts_in_words(*counts: int) -> str:
    """Return the number of hosts, or several numbers: `1 host`, `2 and 8 hosts`."""
    return f"{listed(map(str, counts))} host" + ("" if counts == (1,) else "s")


def name_of(cell: Cell) -> str:
    """Return the model and the number of hosts of a measurement."""
    return f"{cell.model}, {hosts_in_words(cell.hosts)}"


def over_one_host(cell: Cell) -> float | None:
    """Return DDP's throughput over that of one host; None where one host was not measured."""
    return None if cell.ddp_acc is None else cell.hosts * cell.ddp_acc


def is_certain_gain(cell: Cell) -> bool:
    """Return whether the chosen strategy is certainly faster than DDP's own."""
    return cell.ratio.verdict == "faster"
