"""Picture of a roofline: rate over intensity with both limits, and the seconds of each group."""

from __future__ import annotations

import itertools
import math
from typing import Any

from matplotlib.figure import Figure

from gallery_lib.measure.profile.roofline.result import Part, Roofline
from gallery_lib.report.doctor.roofline_text import headline, rate_text, share_text, shown_groups

_COLOURS = (  # Okabe and Ito's, which colour-blind readers tell apart
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#E69F00", "#000000", "#999999"),
)
_MARKERS = "osD^vP*X"
_GIGA = 1e9
_MARGIN = 4.0  # of the axes, as a factor


def figure(roofline: Roofline) -> Figure:
    """Return the picture of a roofline.

    On the left, groups with floating-point operations as points below the two limits. On the right,
    the seconds of every group, and those at the limits.
    """
    groups = shown_groups(roofline)
    plot = Figure(figsize=(12.0, max(4.2, 1.4 + 0.42 * len(groups))), layout="constrained")
    left, right = plot.subplots(1, 2)
    colours = {part.name: _COLOURS[place % len(_COLOURS)] for place, part in enumerate(groups)}
    _draw_roof(left, roofline, [part for part in groups if part.flops and part.seconds], colours)
    _draw_seconds(right, groups, colours)
    reached = roofline.limit_seconds / roofline.seconds
    plot.suptitle(f"{headline(roofline)}: {reached:.0%} of the machine's limits")
    return plot


def _draw_roof(axes: Any, roofline: Roofline, parts: list[Part], colours: dict[str, Any]) -> None:
    copies = roofline.limits.copy_bytes_per_second.median
    rates = {dtype: s.median for dtype, s in roofline.limits.flops_per_second.items()}
    ridges = [rate / copies for rate in rates.values()]
    intensities = [part.flops / part.bytes for part in parts if part.bytes]
    spots = [*ridges, *intensities] or [1.0]
    low, high = min(spots) / _MARGIN, max(spots) * _MARGIN
    for (dtype, rate), style in zip(rates.items(), ("-", "--", ":"), strict=False):
        axes.plot(  # copies below the ridge, products above it
            [low, rate / copies, high],
            [low * copies / _GIGA, rate / _GIGA, rate / _GIGA],
            color="black",
            linestyle=style,
            linewidth=1.2,
            label=f"limits: {rate / _GIGA:,.0f} GFLOP/s in {dtype}, {copies / _GIGA:.1f} GB/s",
        )
    for part, marker in zip(parts, itertools.cycle(_MARKERS), strict=False):
        axes.plot(
            part.flops / part.bytes,
            part.flops / part.seconds / _GIGA,
            marker=marker,
            markersize=9,
            linestyle="",
            color=colours[part.name],
            label=part.name,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="intensity, FLOP per byte of compulsory traffic",
        ylabel="rate, GFLOP/s",
        title="Groups with products, and the limits",
    )
    axes.grid(which="both", alpha=0.2)
    heights = [y for line in axes.get_lines() for y in line.get_ydata()] or [1.0]
    axes.set_ylim(10 ** math.floor(math.log10(min(heights))), _MARGIN * max(heights))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower left", fontsize="small", frameon=False, ncols=4)


def _draw_seconds(axes: Any, parts: list[Part], colours: dict[str, Any]) -> None:
    for place, part in enumerate(parts):
        axes.barh(place, 1000 * part.seconds, height=0.7, color=colours[part.name], alpha=0.35)
        axes.barh(place, 1000 * part.limit_seconds, height=0.35, color=colours[part.name])
        axes.text(
            1000 * max(part.seconds, part.limit_seconds),
            place,
            f" {share_text(part)}, {rate_text(part)}",
            va="center",
            fontsize="small",
        )
    axes.set_yticks(range(len(parts)), [part.name for part in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)  # the most to gain at the top
    axes.set_xlim(0, 1350 * max(max(part.seconds, part.limit_seconds) for part in parts))
    axes.set(
        xlabel="milliseconds of a step: measured (light), at the limits (dark)",
        title="Seconds, the most to gain first",
    )
    axes.grid(axis="x", alpha=0.3)


def figure_text(roofline: Roofline) -> str:
    """Return the alternative text of `figure`."""
    groups = ", ".join(
        f"{part.name} {1000 * part.seconds:.0f} ms, {share_text(part)}"
        for part in shown_groups(roofline)
    )
    return (
        f"Roofline of {headline(roofline)}: rate over intensity with the limits of products and "
        f"copies, and bars of milliseconds by group, with the share of the limit. {groups}."
    )
