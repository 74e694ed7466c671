"""Classes of mock ImageNet: what each looks like, as numbers for the drawing and in words.

A class is a combination of hue × outline × texture, ten of each, so 1000 classes exist.
"""

from __future__ import annotations

import re

MAX_CLASSES = 1000

_HUES = ["red", "orange", "lime", "green", "jade", "cyan", "azure", "blue", "purple", "pink"]
_OUTLINES = (
    *("discs", "triangles", "squares", "stars", "bars"),
    *("crosses", "clovers", "cogs", "half-discs", "keyholes"),
)
_TEXTURES = (
    *("striped across", "finely striped across", "striped down", "finely striped down"),
    *("chequered", "finely chequered", "chequered aslant", "finely chequered aslant"),
    *("ringed", "finely ringed"),
)


def class_in_words(wnid: str) -> str:
    """Return what a class of mock ImageNet looks like: `red discs, striped across`.

    The id of any other class comes back as it is.
    """
    match = re.fullmatch(r"n(\d{8})", wnid)
    label = int(match[1]) - 1 if match else -1
    if not 0 <= label < MAX_CLASSES:
        return wnid
    hue, outline, texture = look(label)
    return f"{_HUES[hue]} {_OUTLINES[outline]}, {_TEXTURES[texture]}"


def look(label: int) -> tuple[int, int, int]:
    """Return hue, outline and texture of a class, 0 to 9 each."""
    a, b, c = (label // d % 10 for d in (1, 10, 100))
    # ten classes already differ in all three
    return a, (a + b) % 10, (a + b + c) % 10
