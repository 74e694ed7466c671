"""What is wrong with one image file, read and decoded whole: more than training asks of it.

Training takes what torchvision's loader takes: pixels that libjpeg or Pillow make up for damaged data, any bytes behind
the image, and a PNG that is called .JPEG. `examine` tells these. Damage changes pixels; an oddity changes none, since the
format is told from the content and what follows an image is not read. Changed bytes show where a format has redundancy:
BMP, PPM and uncompressed TIFF have none, and only their truncation is found.

It costs a full decode: about as long as the training takes to load the image once.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

import simplejpeg
from PIL import Image

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
"""Pillow's name of the format that an ending promises."""
_SEVERAL_JPEGS = "MPO"  # a JPEG with further ones behind it, as cameras write
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # in entropy-coded data: the end of a scan


@dataclass(frozen=True)
class Finding:
    """`damage` makes an image unreadable or changes its pixels; `oddity` is harmless. Both None: nothing to say."""

    damage: str | None = None
    oddity: str | None = None


def examine(path: str | os.PathLike[str]) -> Finding:
    """Decode the image file `path` whole and return what is wrong with it."""
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
    """Return what libjpeg warns about where it goes on decoding, None if nothing."""
    try:
        colourspace = simplejpeg.decode_jpeg_header(data)[2]
        target = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}.get(colourspace, "RGB")
        simplejpeg.decode_jpeg(data, target, strict=True)
    except ValueError as error:
        return f"decodes with a warning: {_reason(error)}"
    return None


def _checksum_error(data: bytes) -> str | None:
    """Return which part of a PNG is not what its checksum says, None if all are."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.verify()
    except Exception as error:
        return _reason(error)
    return None


def _end(data: bytes, kind: str) -> int | None:
    """Return the number of bytes that belong to the image; None for formats that do not tell."""
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
    """Return where the first image ends (ITU-T T.81, B.1): behind its end-of-image marker; None without one."""
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
            found = _MARKER.search(data, at)
            if found is None:
                return None
            at = found.start()
    return at + 2 if data[at : at + 2] == b"\xff\xd9" else None
