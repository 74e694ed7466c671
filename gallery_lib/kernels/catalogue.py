"""Every CUDA source of `cuda/`, with every set of defines that it is compiled with.

The compile tests and the table of resources go through this list.
"""

from __future__ import annotations

from gallery_lib.kernels.runtime import nvrtc
from gallery_lib.kernels.runtime.launch import ELEMENTS

VARIANTS: tuple[tuple[str, nvrtc.Defines], ...] = tuple(
    (source.name, ELEMENTS[dtype])
    for source in sorted(nvrtc.SOURCES.glob("*.cu"))
    for dtype in ELEMENTS
)
