"""Read the features of an utterance: one matrix [frames, dims] of a .npy file or a Kaldi archive.

`shape` reads a header, `load` a whole matrix. kaldiio reads the archives, also compressed ones.
This module crops, normalises and batches nothing.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.speech.feature_manifest import Utterance
from gallery_lib.errors import InputError


def shape(utterance: Utterance) -> tuple[int, int]:
    """Return (frames, dims) of the utterance's matrix, from its header alone.

    Raises:
        InputError: if the header cannot be read, if the file is truncated, or if the array is not a
            matrix with at least one frame and one value.
    """
    try:
        with utterance.path.open("rb") as file:
            sizes = (
                _npy_shape(file)
                if utterance.offset is None
                else _kaldi_shape(file, utterance.offset)
            )
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise _unreadable(utterance, error) from error
    if len(sizes) != 2 or min(sizes) < 1:
        raise InputError(
            f"{_named(utterance)} holds an array {list(sizes)}; it must be a matrix [frames, dims] "
            "with one of each at least.",
            parameter=str(utterance.path),
        )
    return sizes[0], sizes[1]


def with_frames(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return the same utterances, each with its number of frames.

    Reads the header of a feature file if the folder does not list the number.

    Raises:
        InputError: as `shape` does.
    """
    return [
        u if u.frames is not None else dataclasses.replace(u, frames=shape(u)[0])
        for u in utterances
    ]


def load(utterance: Utterance, dims: int | None = None) -> NDArray[np.float32]:
    """Return the utterance's features, float32 [frames, dims].

    Raises:
        InputError: the message names the file if it cannot be read, or if it holds no matrix of
            numbers. Also if the number of frames differs from the listed one, if the number of
            values a frame differs from `dims` (unless None), or if a value is not finite.
    """
    try:
        if utterance.offset is None:
            array = np.load(utterance.path, allow_pickle=False)
        else:
            from kaldiio.matio import read_kaldi

            with utterance.path.open("rb") as file:
                # only a matrix, and none of the other things that kaldiio would read
                _kaldi_shape(file, utterance.offset)
                file.seek(utterance.offset)
                array = read_kaldi(file)
    except (OSError, ValueError, EOFError, AssertionError, struct.error) as error:
        raise _unreadable(utterance, error) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{printable(utterance.path)} holds {array.dtype} {list(array.shape)}; it must be "
            "numbers [frames, dims].",
            parameter=str(utterance.path),
        )
    _refuse_other_sizes(utterance, (len(array), array.shape[1]), dims)
    features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise InputError(
            f"{_named(utterance)} holds values that are not finite (NaN or infinity).",
            parameter=str(utterance.path),
        )
    return features


def _refuse_other_sizes(utterance: Utterance, sizes: tuple[int, int], dims: int | None) -> None:
    if dims is not None and sizes[1] != dims:
        raise InputError(
            f"{_named(utterance)} has {sizes[1]} values a frame; it must have {dims}.",
            parameter=str(utterance.path),
        )
    if utterance.frames not in (None, sizes[0]):
        raise InputError(
            f"{_named(utterance)} has {sizes[0]} frames, and {utterance.frames} are listed.",
            parameter=str(utterance.path),
        )


def _named(utterance: Utterance) -> str:
    return f"{printable(utterance.path)} ({printable(utterance.name)})"


def refuse_missing_files(folder: Path, utterances: Sequence[Utterance]) -> None:
    """Raise InputError if a feature file of `utterances` is missing or is not a file.

    The error names the first such file, their number, and the `folder` that lists them.
    """
    missing = [
        path
        for path in dict.fromkeys(utterance.path for utterance in utterances)
        if not path.is_file()
    ]
    if missing:
        raise InputError(
            f"{printable(folder)} lists {len(missing)} feature file(s) that do not exist, the "
            f"first being {printable(missing[0])}. Complete the folder, or leave them out of the "
            "list.",
            parameter="data_dir",
        )


def check(utterances: Sequence[Utterance], dims: int | None, *, full: bool = False) -> int:
    """Check the features of `utterances` and return their number of values a frame.

    Each matrix must be [frames, `dims`] with the listed number of frames and finite values. If
    `dims` is None, all must have as many values a frame as the first. The check reads the headers
    of all utterances and the values of some, evenly spread; with `full`, the values of all. Raises
    InputError for the first utterance that fails.
    """
    every = 1 if full else max(1, len(utterances) // 64)
    for number, utterance in enumerate(utterances):
        sizes = shape(utterance)
        dims = sizes[1] if dims is None else dims
        _refuse_other_sizes(utterance, sizes, dims)
        if number % every == 0:
            load(utterance, dims)
    assert dims is not None
    return dims


def statistics(
    utterances: Sequence[Utterance], count: int = 64
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation, float32 [dims] each, of the frames of some utterances.

    At most `count` utterances are read, evenly spread over the list. Deviations are at least 1e-5.
    """
    sample = [
        utterances[int(i)] for i in np.linspace(0, len(utterances) - 1, min(count, len(utterances)))
    ]
    frames = np.concatenate([load(utterance) for utterance in sample]).astype(np.float64)
    return frames.mean(0).astype(np.float32), np.maximum(frames.std(0), 1e-5).astype(np.float32)


def _npy_shape(file: BinaryIO) -> tuple[int, ...]:
    read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    major = np.lib.format.read_magic(file)[0]
    if major not in read_header:
        raise ValueError(f"version {major} of the .npy format")
    sizes, _, dtype = read_header[major](file)
    _refuse_truncated(file, file.tell() + math.prod(sizes) * dtype.itemsize)
    return sizes


def _kaldi_shape(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Return (rows, columns) from the header of the binary Kaldi matrix at `offset`.

    The header is a token and the two sizes, each after a byte 4. Compressed matrices (CM) have four
    values after the token; the last two are the sizes.

    Raises:
        ValueError: for other content and for a truncated file.
    """
    file.seek(offset)
    header = file.read(22)
    if header[:5] in (b"\0BFM ", b"\0BDM "):
        _, rows, _, columns = struct.unpack("<bibi", header[5:15])
        size = 15 + rows * columns * (4 if header[2:3] == b"F" else 8)
    elif header[:4] == b"\0BCM" and b" " in header[4:6]:
        start = header.index(b" ", 4) + 1
        _, _, rows, columns = struct.unpack("<ffii", header[start : start + 16])
        size = (
            start
            + 16
            + rows * columns * (2 if header[4:5] == b"2" else 1)
            + 8 * columns * (header[4:5] == b" ")
        )
    else:
        raise ValueError(f"no binary Kaldi matrix at offset {offset}")
    _refuse_truncated(file, offset + size)
    return rows, columns


def _refuse_truncated(file: BinaryIO, needed: int) -> None:
    """Raise ValueError if the file has fewer than the `needed` bytes that its header implies."""
    if (size := os.fstat(file.fileno()).st_size) < needed:
        raise ValueError(f"it is truncated: {size} of {needed} bytes")


def _unreadable(utterance: Utterance, error: BaseException) -> InputError:
    reason = (
        (error.strerror or str(error))
        if isinstance(error, OSError)
        else str(error) or type(error).__name__
    )
    return InputError(
        f"Cannot read the features of {printable(utterance.name)}, {printable(utterance.path)}: "
        f"{reason}. Is the data folder complete?",
        parameter=str(utterance.path),
    )
