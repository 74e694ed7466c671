"""Every source of ours with every set of defines that it is compiled with: what the compile tests and the table go through."""

from __future__ import annotations

from gallery_lib.kernels import gradient_statistics
from gallery_lib.kernels.compilation import Defines

_ELEMENTS = tuple(gradient_statistics.ELEMENTS.values())

VARIANTS: tuple[tuple[str, Defines], ...] = tuple((gradient_statistics.SOURCE, (("ELEMENT", element),)) for element in _ELEMENTS)
