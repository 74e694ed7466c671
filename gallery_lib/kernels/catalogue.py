"""Every source of ours with every set of defines that it is compiled with: what the compile tests and the table go through."""

from __future__ import annotations

from gallery_lib.kernels import cross_entropy, gradient_statistics, optimizer_step
from gallery_lib.kernels.compilation import Defines

_ELEMENTS = tuple(gradient_statistics.ELEMENTS.values())

_FOR_EVERY_ELEMENT = (gradient_statistics.SOURCE, optimizer_step.SOURCE, optimizer_step.LAMB_SOURCE, cross_entropy.SOURCE)

VARIANTS: tuple[tuple[str, Defines], ...] = tuple(
    (source, (("ELEMENT", element),)) for source in _FOR_EVERY_ELEMENT for element in _ELEMENTS
)
