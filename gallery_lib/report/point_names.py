"""Names beside the points of a scatter plot: as many as have room, the outermost in any case.

A greedy placement. The outermost points come first, then the others, those far from the middle
before those near it. A name takes the first place around its point where it covers neither another
name nor another point. A point without such a place stays without a name, unless it is one of the
outermost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

_FONT = 7
_MARK = 4.0
"""Half the size of a point's mark, in pixels, which no name may cover."""
_PLACES = (
    (6, 0, "left", "center"),
    (-6, 0, "right", "center"),
    (4, 5, "left", "bottom"),
    (4, -5, "left", "top"),
    (-4, 5, "right", "bottom"),
    (-4, -5, "right", "top"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
)
"""Offset in points, and the alignment of a name there, in the order of preference."""


@dataclass(frozen=True)
class Point:
    """A point of the plot and its name."""

    x: float
    y: float
    name: str


def outermost(points: Sequence[Point]) -> list[Point]:
    """Return the points with the lowest and highest x and y, each once."""
    ends = [choose(points, key=key) for key in (_x, _y) for choose in (min, max)] if points else []
    return list(dict.fromkeys(ends))


def _x(point: Point) -> float:
    return point.x


def _y(point: Point) -> float:
    return point.y


def name_points(axes: Any, points: Sequence[Point], line: float | None = None) -> list[str]:
    """Write names beside points of the axes, which are complete otherwise; return those written.

    Args:
        axes: the axes, which hold the points and the legend already.
        points: the points, at most one at each place.
        line: height of a horizontal line that names keep clear of, if there is one.
    """
    figure = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    figure.draw_without_rendering()  # the layout decides where points lie
    middles = axes.transData.transform([(point.x, point.y) for point in points])
    marks = [Bbox([middle - _MARK, middle + _MARK]) for middle in middles]
    inside = axes.get_window_extent(renderer)
    needed = [points.index(point) for point in outermost(points)]
    far = np.linalg.norm((middles - np.median(middles, 0)) / inside.size, axis=1) if marks else []
    others = sorted(set(range(len(points))) - set(needed), key=lambda index: -far[index])
    legend = axes.get_legend()
    taken: list[Bbox] = [legend.get_window_extent(renderer)] if legend else []
    if line is not None:
        height = axes.transData.transform((0, line))[1]
        taken.append(Bbox([[inside.x0, height - 1], [inside.x1, height + 1]]))
    written = []
    for index in [*needed, *others]:
        free = [*taken, *marks[:index], *marks[index + 1 :]]
        for note, box in _placed(axes, points[index], renderer):
            if _contains(inside, box) and not any(box.overlaps(other) for other in free):
                break
            note.remove()
        else:
            if index not in needed:
                continue
            note, box = _least_covering(axes, points[index], renderer, inside, free)
        taken.append(box)
        written.append(points[index].name)
    return written


def _placed(axes: Any, point: Point, renderer: Any) -> Iterator[tuple[Any, Bbox]]:
    """Yield the name at each place around the point, with the room that it takes."""
    for x, y, horizontal, vertical in _PLACES:
        note = axes.annotate(
            point.name,
            (point.x, point.y),
            (x, y),
            textcoords="offset points",
            ha=horizontal,
            va=vertical,
            fontsize=_FONT,
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
        )
        note.set_in_layout(False)  # a name does not make the axes smaller
        yield note, note.get_window_extent(renderer)


def _least_covering(
    axes: Any, point: Point, renderer: Any, inside: Bbox, free: Sequence[Bbox]
) -> tuple[Any, Bbox]:
    """Return the name of an outermost point inside the axes, where it covers least."""
    notes = list(_placed(axes, point, renderer))

    def cost(pair: tuple[Any, Bbox]) -> tuple[bool, int]:
        return not _contains(inside, pair[1]), sum(pair[1].overlaps(other) for other in free)

    best = min(notes, key=cost)
    for note, _ in notes:
        if note is not best[0]:
            note.remove()
    return best


def _contains(outer: Bbox, inner: Bbox) -> bool:
    return bool(
        outer.x0 <= inner.x0
        and inner.x1 <= outer.x1
        and outer.y0 <= inner.y0
        and inner.y1 <= outer.y1
    )
