"""Charts and tables of a task's data."""

from __future__ import annotations

import re
import textwrap

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows as TableRows
from gallery_lib.console.table import number
from gallery_lib.report.style import Chart
from gallery_lib.tasks.task import Examples, Matrices, Pictures, Rows

_LETTERS_PER_INCH = 15  # of captions, in a font of 8.5 points
_MARKUP = re.compile(r"[\\`*_\[\]<>|#~$]")  # characters that are markup in Markdown


def chart(examples: Pictures | Matrices) -> Chart:
    """Return a grid of captioned pictures, or matrices side by side on one colour scale."""
    rows = table_rows(examples)
    if isinstance(examples, Pictures):
        return Chart(f"Images: {examples.description}", rows, lambda: _grid(examples))
    title = f"{' and '.join(examples.values)}, as colours: {examples.description}"
    return Chart(title, rows, lambda: _matrices(examples))


def table_rows(examples: Examples) -> TableRows:
    """Return the same content as the rows of a Markdown table.

    For pictures these are the captions, for matrices their mean and range.
    """
    if isinstance(examples, Rows):
        rows = [list(examples.header), *(list(row) for row in examples.rows)]
    elif isinstance(examples, Pictures):
        captions = (one.replace(",\n", ", ").replace("\n", "; ") for one in examples.captions)
        rows = [["image", "shown"], *([str(i), one] for i, one in enumerate(captions, 1))]
    else:
        rows = [["", "size", "mean", "lowest", "highest"]]
        for title, m in examples.values.items():
            figures = (number(float(value)) for value in (m.mean(), m.min(), m.max()))
            rows.append([title, "×".join(map(str, m.shape)), *figures])
    return [[_MARKUP.sub(r"\\\g<0>", cell).replace("\n", " ") for cell in row] for row in rows]


def _grid(pictures: Pictures) -> Figure:
    columns = min(pictures.columns, len(pictures.images))
    rows = -(-len(pictures.images) // columns)
    cell = 9.2 / columns
    captions = [
        "\n".join(textwrap.fill(line, int(_LETTERS_PER_INCH * cell)) for line in one.splitlines())
        for one in pictures.captions
    ]
    lines = max(caption.count("\n") + 1 for caption in captions)
    height, width = pictures.images[0].shape[:2]
    grid = Figure(
        figsize=(cell * columns, (cell * height / width + 0.17 * lines + 0.2) * rows),
        layout="constrained",
    )
    for place, (image, caption) in enumerate(zip(pictures.images, captions, strict=True), 1):
        axes = grid.add_subplot(rows, columns, place)
        axes.imshow(image)
        axes.set_title(caption, fontsize=8.5, loc="left")
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
