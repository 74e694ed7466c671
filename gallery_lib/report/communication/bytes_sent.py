"""Plot of the bytes that a host sends in a step, by wire format: computed, not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.report.plots import COLOURS
from gallery_lib.report.sentences import listed, sentence

_MEBI = 2**20


@dataclass(frozen=True)
class BytesSent:
    """What a host sends in a step of one model, by wire format, and the rate of its link.

    The first format is the one that does not round.
    """

    title: str
    parameters: int
    hosts: int
    bits_per_second: int
    sent: Mapping[str, float]

    @property
    def exact(self) -> str:
        """Return the name of the format that does not round."""
        return next(iter(self.sent))

    @property
    def rate(self) -> str:
        """Return the rate of a host's link with its unit: `200 Mbit/s`."""
        return f"{self.bits_per_second / 1e6:g} Mbit/s"

    def link_seconds(self, wire: str) -> float:
        """Return how many seconds the bytes of the format `wire` keep the link busy."""
        return 8 * self.sent[wire] / self.bits_per_second

    def share(self, wire: str) -> str:
        """Return the bytes of the format as a part of those of the exact one: `50.0%`."""
        return f"{self.sent[wire] / self.sent[self.exact]:.1%}"


def bytes_title(counted: BytesSent) -> str:
    """Return what the bars say: what the exact format sends, and the smallest one."""
    smallest = min(counted.sent, key=lambda wire: counted.sent[wire])
    size = f"{counted.sent[counted.exact] / _MEBI:.3g} MiB"
    sends = f"{counted.title}: each of {counted.hosts} hosts sends {size} a step in {counted.exact}"
    if smallest == counted.exact:
        return f"{sends}, and no format sends less"
    return f"{sends}, {counted.share(smallest)} of that in {smallest}"


def bytes_figure(counted: BytesSent) -> Figure:
    """Return a figure of what a host sends in a step, with a bar for each format."""
    figure = Figure(figsize=(7.0, 1.1 + 0.45 * len(counted.sent)), layout="constrained")
    axes = figure.subplots()
    values = [size / _MEBI for size in counted.sent.values()]
    bars = axes.barh(list(counted.sent), values, color=COLOURS[0])
    labels = [
        f"{value:.3g} MiB, {counted.share(wire)}"
        for wire, value in zip(counted.sent, values, strict=True)
    ]
    axes.bar_label(bars, labels, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set(title=bytes_title(counted).replace(", ", ",\n"), xlabel="MiB, computed")
    return figure


def bytes_text(counted: BytesSent) -> str:
    """Return the alternative text of `bytes_figure`."""
    parts = ", ".join(f"{wire} {size / _MEBI:.3g} MiB" for wire, size in counted.sent.items())
    return (
        f"Bar chart of what each of {counted.hosts} hosts sends in a step of {counted.title}, "
        f"computed: {parts}. {sentence(bytes_title(counted))}"
    )


def bytes_rows(counted: BytesSent) -> Rows:
    """Return the table of `bytes_figure`."""
    rows = [
        ["wire format", "sent by each host in a step", "of fp32", f"busy link at {counted.rate}"]
    ]
    return rows + [
        [
            wire,
            f"{size / _MEBI:.3g} MiB",
            counted.share(wire),
            seconds(counted.link_seconds(wire)),
        ]
        for wire, size in counted.sent.items()
    ]


def bytes_advice(counted: BytesSent) -> str:
    """Return what to do with the bytes: what to compare them with, and when to send fewer."""
    exact = counted.exact
    smaller = [wire for wire in counted.sent if counted.sent[wire] < counted.sent[exact]]
    busy = seconds(counted.link_seconds(exact))
    text = (
        f"Time a step of yours on one process. In {exact}, a link of {counted.rate} is busy for "
        f"{busy} of each step. If your step is much longer than that, the network is not your "
        "limit: change nothing."
    )
    if not smaller:
        return f"{text} No format sends less: a shorter step takes a faster link."
    times = listed(f"{wire} {seconds(counted.link_seconds(wire))}" for wire in smaller)
    return f"{text} If it is not, send fewer bytes; the link is then busy for: {times}."
