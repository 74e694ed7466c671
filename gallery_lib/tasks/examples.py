"""Examples of a task's data and predictions, independent of how `report` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pictures:
    """Images uint8 [H, W, 3], each with a caption.

    `description` says in a sentence what is to be seen.
    """

    images: Sequence[np.ndarray]
    captions: Sequence[str]
    description: str
    columns: int = 5


@dataclass(frozen=True)
class Rows:
    """A table: a header and rows of text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Matrices:
    """Titled matrices [n, m] on one colour scale, drawn side by side.

    They are spectrograms or similarities.
    """

    values: dict[str, np.ndarray]
    description: str
    row_label: str = ""
    column_label: str = ""


Examples = Pictures | Rows | Matrices
