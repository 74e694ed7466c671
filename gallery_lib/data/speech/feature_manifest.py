"""List the utterances and labels of a folder of acoustic features, and read one utterance.

The files in a folder tell which of two layouts it has:

- `manifest.tsv`: a header line with the columns `path`, `label` and perhaps `frames`, then a line
  per utterance; each path is a .npy file [frames, dims], relative to the manifest;
- a Kaldi data folder: `feats.scp` (`utterance file.ark:offset`) with `utt2spk` (speakers) or `text`
  (transcripts), and perhaps `utt2num_frames`. kaldiio reads the archives, also compressed ones.

The label is text: a speaker for speaker verification, a transcript for speech recognition.

`list_utterances` opens no feature file. `with_frames` reads the header of each utterance whose
number of frames is not listed. `load` reads one whole utterance. This module crops, normalises and
batches nothing. An scp file may hold commands; none is ever run.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from gallery_lib.data.folder_walk import printable, scan, some
from gallery_lib.data.images.mock_manifest import write_atomically
from gallery_lib.errors import InputError

MANIFEST = "manifest.tsv"
SCP = "feats.scp"
KaldiLabels = Literal["utt2spk", "text"]
_ARCHIVE = re.compile(r"(?P<path>.+):(?P<offset>\d+)")


@dataclass(frozen=True)
class Utterance:
    """One utterance of a folder: its name, its label and the place of its features.

    `offset` is None for a .npy file, otherwise where the matrix begins in a Kaldi archive.
    """

    name: str
    label: str
    path: Path
    offset: int | None = None  # bytes
    frames: int | None = None  # None if the folder does not list it


def list_utterances(
    folder: Path | str, kaldi_labels: KaldiLabels, make_command: str
) -> list[Utterance]:
    """Return the utterances of `folder` in the order of its list.

    In a Kaldi folder the labels come from the file `kaldi_labels`. Raises InputError that says what
    is missing or malformed, where, and what to do. The error suggests `make_command` if `folder`
    does not exist, is a file or holds neither layout.
    """
    folder = Path(folder).expanduser().absolute()
    shown = printable(folder)
    make = f"Mock data, in a folder of its own: {make_command}"
    try:
        what = "" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
    except OSError as error:
        raise InputError(
            f"Cannot read the folder of features {shown}: {error.strerror}."
        ) from error
    if what:
        raise InputError(
            f"The folder of features {shown} {what}. It should hold {MANIFEST}, or Kaldi's {SCP}. "
            f"{make}"
        )
    if (folder / MANIFEST).is_file():
        utterances = list(_from_tsv(folder / MANIFEST))
    elif (folder / SCP).is_file():
        utterances = list(_from_kaldi(folder, kaldi_labels))
    else:
        found = [entry.name for entry in scan(folder)]
        raise InputError(
            f"{shown} has neither {MANIFEST} nor Kaldi's {SCP} in it. It holds "
            f"{some(found) or 'nothing'}. {make}"
        )
    if not utterances:
        raise InputError(f"{shown} lists no utterances.")
    return utterances


def with_frames(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return the same utterances, each with its number of frames.

    Reads the header of a feature file if the folder does not list the number. Raises InputError as
    `shape` does.
    """
    return [
        u if u.frames is not None else dataclasses.replace(u, frames=shape(u)[0])
        for u in utterances
    ]


def shape(utterance: Utterance) -> tuple[int, int]:
    """Return (frames, dims) of the utterance's matrix, from its header alone.

    Raises InputError if the header cannot be read, if the file is truncated, or if the array is not
    a matrix with at least one frame and one value.
    """
    try:
        with utterance.path.open("rb") as file:
            found = (
                _npy_shape(file)
                if utterance.offset is None
                else _kaldi_shape(file, utterance.offset)
            )
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise _unreadable(utterance, error) from error
    if len(found) != 2 or min(found) < 1:
        raise InputError(
            f"{_named(utterance)} holds an array {list(found)}; it must be a matrix [frames, dims] "
            "with one of each at least."
        )
    return found[0], found[1]


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
            "list."
        )


def load(utterance: Utterance, dims: int | None = None) -> NDArray[np.float32]:
    """Return the utterance's features, float32 [frames, dims].

    Raises InputError that names the file if it cannot be read, or if it holds no matrix of numbers.
    Raises InputError also if the number of frames differs from the listed one, if the number of
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
            "numbers [frames, dims]."
        )
    _refuse_other_sizes(utterance, (len(array), array.shape[1]), dims)
    features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise InputError(f"{_named(utterance)} holds values that are not finite (NaN or infinity).")
    return features


def _refuse_other_sizes(utterance: Utterance, found: tuple[int, int], dims: int | None) -> None:
    if dims is not None and found[1] != dims:
        raise InputError(f"{_named(utterance)} has {found[1]} values a frame; it must have {dims}.")
    if utterance.frames not in (None, found[0]):
        raise InputError(
            f"{_named(utterance)} has {found[0]} frames, and {utterance.frames} are listed."
        )


def _named(utterance: Utterance) -> str:
    return f"{printable(utterance.path)} ({printable(utterance.name)})"


def check(utterances: Sequence[Utterance], dims: int | None, *, full: bool = False) -> int:
    """Check the features of `utterances` and return their number of values a frame.

    Each matrix must be [frames, `dims`] with the listed number of frames and finite values. If
    `dims` is None, all must have as many values a frame as the first. The check reads the headers
    of all utterances and the values of some, evenly spread; with `full`, the values of all. Raises
    InputError for the first utterance that fails.
    """
    every = 1 if full else max(1, len(utterances) // 64)
    for number, utterance in enumerate(utterances):
        found = shape(utterance)
        dims = found[1] if dims is None else dims
        _refuse_other_sizes(utterance, found, dims)
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
    chosen = [
        utterances[int(i)] for i in np.linspace(0, len(utterances) - 1, min(count, len(utterances)))
    ]
    frames = np.concatenate([load(utterance) for utterance in chosen]).astype(np.float64)
    return frames.mean(0).astype(np.float32), np.maximum(frames.std(0), 1e-5).astype(np.float32)


def write(folder: Path, rows: Iterable[tuple[str, str, int]]) -> None:
    """Write `manifest.tsv` in `folder` from rows of (path below the folder, label, frames)."""
    lines = ["path\tlabel\tframes", *(f"{path}\t{label}\t{frames}" for path, label, frames in rows)]
    write_atomically(folder / MANIFEST, ("\n".join(lines) + "\n").encode())


def _from_tsv(manifest: Path) -> Iterator[Utterance]:
    lines = _lines(manifest)
    columns = lines[0][1].split("\t") if lines else []
    if not {"path", "label"} <= set(columns):
        raise InputError(
            f"{manifest} must begin with a line that names the columns path and label, separated "
            f"by a tab; found {columns}."
        )
    for number, line in lines[1:]:
        values = line.split("\t")
        if len(values) != len(columns):
            raise InputError(
                f"{manifest}, line {number}: {len(values)} values for {len(columns)} columns "
                f"(separated by tabs): {line!r}."
            )
        row = dict(zip(columns, values, strict=True))
        if not row["path"] or not row["label"].strip():
            raise InputError(
                f"{manifest}, line {number}: path and label must not be empty: {line!r}."
            )
        frames = _whole_number(manifest, number, row["frames"]) if row.get("frames") else None
        yield Utterance(
            row["path"], row["label"].strip(), manifest.parent / row["path"], frames=frames
        )


def _from_kaldi(folder: Path, kaldi_labels: KaldiLabels) -> Iterator[Utterance]:
    if not (folder / kaldi_labels).is_file():
        raise InputError(
            f"{folder} has {SCP} but no {kaldi_labels}, which holds a line `utterance label` for "
            "each utterance."
        )
    labels = {name: label for _, name, label in _pairs(folder / kaldi_labels)}
    frames = {}
    if (folder / "utt2num_frames").is_file():
        listed = folder / "utt2num_frames"
        frames = {
            name: _whole_number(listed, number, value) for number, name, value in _pairs(listed)
        }
    for number, name, location in _pairs(folder / SCP):
        if name not in labels:
            raise InputError(
                f"{folder / kaldi_labels} has no line for utterance {name}, which {SCP} lists."
            )
        match = _ARCHIVE.fullmatch(location)
        if match is None or "|" in location:
            raise InputError(
                f"{folder / SCP}, line {number}: {location!r} is not `file.ark:offset`. "
                "Commands and ranges are not read: write plain archives with Kaldi's copy-feats."
            )
        path = Path(match["path"])
        # Kaldi's own paths are relative to where its scripts ran
        if not path.is_absolute() and (folder / path).exists():
            path = folder / path
        yield Utterance(name, labels[name], path.absolute(), int(match["offset"]), frames.get(name))


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number, line) of each line of a UTF-8 text file that is not blank.

    Raises InputError if the file cannot be read.
    """
    if path.exists() and not path.is_file():  # reading a pipe would block for ever
        raise InputError(f"{printable(path)} is no file. It must be a text file in UTF-8.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Cannot read {path}: {error}. It must be a text file in UTF-8."
        ) from error
    return [
        (number, line.rstrip("\r"))
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


def _pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, first word, rest) for each line of a Kaldi text file.

    Raises InputError for a line of one word.
    """
    for number, line in _lines(path):
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise InputError(f"{path}, line {number}: expected `utterance value`, found {line!r}.")
        yield number, words[0], words[1].strip()


def _whole_number(path: Path, number: int, value: str) -> int:
    if not value.strip().isdecimal() or int(value) == 0:
        raise InputError(f"{path}, line {number}: {value!r} is not a number of frames.")
    return int(value)


def _npy_shape(file: BinaryIO) -> tuple[int, ...]:
    read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    major = np.lib.format.read_magic(file)[0]
    if major not in read_header:
        raise ValueError(f"version {major} of the .npy format")
    found, _, dtype = read_header[major](file)
    _refuse_truncated(file, file.tell() + math.prod(found) * dtype.itemsize)
    return found


def _kaldi_shape(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Return (rows, columns) from the header of the binary Kaldi matrix at `offset`.

    The header is a token and the two sizes, each after a byte 4. Compressed matrices (CM) have four
    values after the token; the last two are the sizes. Raises ValueError for other content and for
    a truncated file.
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
        f"{reason}. Is the data folder complete?"
    )
