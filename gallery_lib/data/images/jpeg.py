"""The library for JPEG: simplejpeg where it is installed, else Pillow.

Both are libjpeg-turbo. simplejpeg decodes about twice as fast, stops early, and reports warnings.
Without it, images are read whole, and `announce()` says so once in a process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

simplejpeg: Any = None
"""The module, or None where it is not installed."""
with contextlib.suppress(ImportError):
    simplejpeg = importlib.import_module("simplejpeg")


class SlowDecoding(RuntimeWarning):
    """Warning that Pillow reads the images; the message says what would make it faster."""


@functools.cache
def announce() -> None:
    """Warn, once in a process, that Pillow stands in for simplejpeg."""
    warnings.warn(
        "simplejpeg is not installed: Pillow reads the images, in about twice the time, and the "
        "warnings of damaged JPEG files stay unknown. Install simplejpeg to change that.",
        SlowDecoding,
        stacklevel=3,
    )


def encode(image: NDArray[np.uint8], quality: int, subsampling: str) -> bytes:
    """Return `image`, RGB uint8 [H, W, 3] and contiguous, as JPEG.

    `subsampling` is "444", "422" or "420".
    """
    if simplejpeg is not None:
        encoded: bytes = simplejpeg.encode_jpeg(
            image, quality=quality, colorspace="RGB", colorsubsampling=subsampling
        )
        return encoded
    announce()
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling=":".join(subsampling))
    return file.getvalue()
