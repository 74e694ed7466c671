"""Find what is wrong with one image file by reading and decoding all of it.

Training is less strict: it takes what torchvision's loader takes. That includes pixels that libjpeg
or Pillow make up for damaged data, any bytes behind the image, and a PNG that is called .JPEG.
`examine` reports all of these. Damage changes pixels. An oddity changes none, since the format is
detected from the content and bytes behind an image are not read. Changed bytes show only where a
format has redundancy. BMP, PPM and uncompressed TIFF have none, so only their truncation is found.

The cost is a full decode: about as long as training takes to load the image once.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from gallery_lib.data.images import jpeg

_FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".ppm": "PPM",
    ".pgm": "PPM",
    ".bmp": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
"""Pillow's name of the format that a file ending promises."""
_SEVERAL_JPEGS = "MPO"  # a JPEG followed by further ones, as cameras write it
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # in entropy-coded data: the end of a scan


@dataclass(frozen=True)
class Finding:
    """Problems of one image file; both fields are None if there are none.

    `damage` makes an image unreadable or changes its pixels. `oddity` is harmless.
    """

    damage: str | None = None
    oddity: str | None = None


def examine(path: str | os.PathLike[str]) -> Finding:
    """Decode all of the image file `path` and return what is wrong with it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return Finding(f"cannot be read: {error.strerror}")
    if not data:
        return Finding("is empty")
    damage = None
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind = str(image.format)
            is_jpeg = kind in ("JPEG", _SEVERAL_JPEGS)
            if is_jpeg:
                damage = _jpeg_warning(data)
            if damage or not is_jpeg:
                image.convert("RGB")
    except Exception as error:  # Pillow raises many types on damaged files
        return Finding(_reason(error))
    if kind == "PNG":
        damage = _checksum_error(data)
    ending = Path(os.fsdecode(path)).suffix.lower()
    oddities = []
    if _FORMATS.get(ending) not in (kind, None) and (kind, _FORMATS.get(ending)) != (
        _SEVERAL_JPEGS,
        "JPEG",
    ):
        oddities.append(f"is {kind}, and its name ends with {ending}")
    end = _end(data, kind)
    if end is not None and end < len(data):
        oddities.append(f"has {len(data) - end} bytes behind the end of the image")
    if end is not None and end > len(data):
        oddities.append(f"lacks the last {end - len(data)} bytes, which hold no pixels")
    return Finding(damage, " and ".join(oddities) or None)


def _reason(error: Exception) -> str:
    text = re.sub(r" *<_io\.BytesIO object at 0x[0-9a-f]+>", " as an image", str(error))
    return " ".join(text.split()) or type(error).__name__


def _jpeg_warning(data: bytes) -> str | None:
    """Return the warning with which libjpeg goes on decoding, or None.

    It is unknown where simplejpeg is not installed; that is announced.
    """
    simplejpeg = jpeg.simplejpeg
    if simplejpeg is None:
        jpeg.announce()
        return None
    try:
        colourspace = simplejpeg.decode_jpeg_header(data)[2]
        target = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}.get(colourspace, "RGB")
        simplejpeg.decode_jpeg(data, target, strict=True)
    except ValueError as error:
        return f"decodes with a warning: {_reason(error)}"
    return None


def _checksum_error(data: bytes) -> str | None:
    """Return which part of a PNG differs from its checksum, or None if all parts match."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.verify()
    except Exception as error:
        return _reason(error)
    return None


def _end(data: bytes, kind: str) -> int | None:
    """Return the number of bytes that belong to the image, or None if the format does not tell."""
    if kind == "JPEG":
        return _jpeg_end(data)
    if kind == "PNG":
        at = 8
        while at + 8 <= len(data):  # length, type, content, checksum
            last = data[at + 4 : at + 8] == b"IEND"
            at += 12 + int.from_bytes(data[at : at + 4], "big")
            if last:
                return at
    if kind == "WEBP":
        size = 8 + int.from_bytes(data[4:8], "little")
        return size + size % 2
    return None


def _jpeg_end(data: bytes) -> int | None:
    """Return where the first image of a JPEG file ends, or None without an end-of-image marker.

    The image ends behind its end-of-image marker (ITU-T T.81, B.1).
    """
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker == 0xD9:
            return at + 2
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            match = _MARKER.search(data, at)
            if match is None:
                return None
            at = match.start()
    return at + 2 if data[at : at + 2] == b"\xff\xd9" else None
