"""List of every kernel source with every set of defines that it is compiled with.

The compile tests and the table of resources go through this list.
"""

from __future__ import annotations

from gallery_lib.kernels import (
    batch_norm_launch,
    compression,
    cross_entropy,
    gradient_statistics,
    image_batch,
    optimizer_step,
)
from gallery_lib.kernels.runtime.nvrtc import Defines

SOURCES = (
    gradient_statistics.SOURCE,
    optimizer_step.SOURCE,
    optimizer_step.LAMB_SOURCE,
    cross_entropy.SOURCE,
    image_batch.SOURCE,
    batch_norm_launch.SOURCE,
    batch_norm_launch.BACKWARD_SOURCE,
    compression.SOURCE,
)

VARIANTS: tuple[tuple[str, Defines], ...] = tuple(
    (source, (("ELEMENT", element),))
    for source in SOURCES
    for element in gradient_statistics.ELEMENTS.values()
)
