"""Figures and tables of a task's data and predictions, with alternative text."""

from __future__ import annotations

import re

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows as TableRows
from gallery_lib.console.table import number
from gallery_lib.tasks.examples import Examples, Matrices, Pictures, Rows

_MARKUP = re.compile(r"[\\`*_\[\]<>|#~$]")  # characters that are markup in Markdown


def figure(examples: Pictures | Matrices) -> Figure:
    """Return a grid of captioned pictures, or matrices side by side on one colour scale."""
    return _grid(examples) if isinstance(examples, Pictures) else _matrices(examples)


def alternative_text(examples: Pictures | Matrices) -> str:
    """Return the alternative text of `figure`."""
    if isinstance(examples, Pictures):
        return f"Grid of images: {examples.description}."
    return f"{' and '.join(examples.values)}, as colours: {examples.description}."


def table_rows(examples: Examples) -> TableRows:
    """Return the same content as the rows of a Markdown table.

    For pictures these are the captions, for matrices their mean and range.
    """
    if isinstance(examples, Rows):
        rows = [list(examples.header), *(list(row) for row in examples.rows)]
    elif isinstance(examples, Pictures):
        rows = [
            ["image", "shown"],
            *([str(i), _in_one_line(c)] for i, c in enumerate(examples.captions, 1)),
        ]
    else:
        rows = [["", "size", "mean", "lowest", "highest"]]
        rows += [
            [
                title,
                "×".join(map(str, m.shape)),
                *(number(float(value)) for value in (m.mean(), m.min(), m.max())),
            ]
            for title, m in examples.values.items()
        ]
    return [[_MARKUP.sub(r"\\\g<0>", cell).replace("\n", " ") for cell in row] for row in rows]


def _in_one_line(caption: str) -> str:
    return caption.replace(",\n", ", ").replace("\n", "; ")


def _grid(pictures: Pictures) -> Figure:
    columns = min(pictures.columns, len(pictures.images))
    rows = -(-len(pictures.images) // columns)
    lines = max(caption.count("\n") + 1 for caption in pictures.captions)
    height, width = pictures.images[0].shape[:2]
    cell = 9.2 / columns
    grid = Figure(
        figsize=(cell * columns, (cell * height / width + 0.16 * lines + 0.1) * rows),
        layout="constrained",
    )
    for place, (image, caption) in enumerate(
        zip(pictures.images, pictures.captions, strict=True), 1
    ):
        axes = grid.add_subplot(rows, columns, place)
        axes.imshow(image)
        axes.set_title(caption, fontsize=7)
        axes.axis("off")
    return grid


def _matrices(matrices: Matrices) -> Figure:
    count = len(matrices.values)
    heatmaps = Figure(figsize=(min(9.2, 3.4 * count + 0.8), 3.2), layout="constrained")
    low = min(float(np.min(m)) for m in matrices.values.values())
    high = max(float(np.max(m)) for m in matrices.values.values())
    plots = heatmaps.subplots(1, count, squeeze=False)[0]
    for axes, (title, matrix) in zip(plots, matrices.values.items(), strict=True):
        image = axes.imshow(
            matrix, vmin=low, vmax=high, cmap="cividis", aspect="auto", interpolation="nearest"
        )
        axes.set(title=title, xlabel=matrices.column_label, ylabel=matrices.row_label)
    heatmaps.colorbar(image, ax=list(plots))
    return heatmaps
