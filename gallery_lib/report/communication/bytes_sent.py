"""Plot of the bytes that a host sends in a step, by wire format: computed, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.report.plots import COLOURS

_MEBI = 2**20


@dataclass(frozen=True)
class BytesSent:
    """What a host sends in a step of one model, by wire format, and the rate of its link."""

    title: str
    parameters: int
    hosts: int
    bits_per_second: int
    sent: Mapping[str, float]

    def link_seconds(self, wire: str) -> float:
        """Return how many seconds the bytes of the format `wire` keep the link busy."""
        return 8 * self.sent[wire] / self.bits_per_second


def bytes_figure(counted: BytesSent) -> Figure:
    """Return a figure of what a host sends in a step, with a bar for each format."""
    figure = Figure(figsize=(7.0, 0.9 + 0.45 * len(counted.sent)), layout="constrained")
    axes = figure.subplots()
    values = [size / _MEBI for size in counted.sent.values()]
    bars = axes.barh(list(counted.sent), values, color=COLOURS[0])
    axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(
        title=f"Gradients of {counted.title}: what each of {counted.hosts} hosts sends in a step",
        xlabel="MiB, computed",
    )
    return figure


def bytes_text(counted: BytesSent) -> str:
    """Return the alternative text of `bytes_figure`."""
    parts = ", ".join(f"{wire} {size / _MEBI:.3g} MiB" for wire, size in counted.sent.items())
    return (
        f"Bar chart of what each of {counted.hosts} hosts sends in a step of {counted.title}, "
        f"computed: {parts}."
    )


def bytes_rows(counted: BytesSent) -> Rows:
    """Return the table of `bytes_figure`."""
    rate = f"{counted.bits_per_second / 1e6:g} Mbit/s"
    rows = [["wire format", "sent by each host in a step", "of fp32", f"busy link at {rate}"]]
    exact = next(iter(counted.sent.values()))
    return rows + [
        [
            wire,
            f"{size / _MEBI:.3g} MiB",
            f"{size / exact:.1%}",
            seconds(counted.link_seconds(wire)),
        ]
        for wire, size in counted.sent.items()
    ]
