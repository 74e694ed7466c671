"""Chart of a task's images."""

from __future__ import annotations

import re
import textwrap

from matplotlib.figure import Figure

from gallery_lib.report.style import Chart
from gallery_lib.tasks.task import Pictures

_LETTERS_PER_INCH = 15  # of captions, in a font of 8.5 points
_MARKUP = re.compile(r"[\\`*_\[\]<>|#~$]")  # characters that are markup in Markdown


def chart(pictures: Pictures) -> Chart:
    """Return a grid of captioned pictures; its table has the captions."""
    captions = (one.replace(",\n", ", ").replace("\n", "; ") for one in pictures.captions)
    rows = [["image", "shown"]]
    rows += [[str(i), _MARKUP.sub(r"\\\g<0>", one)] for i, one in enumerate(captions, 1)]
    return Chart(f"Images: {pictures.description}", rows, lambda: _grid(pictures))


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
