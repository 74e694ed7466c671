"""List and read a folder of acoustic features, each utterance one matrix [frames, dims].

The files in a folder tell which of two layouts it has:

- `manifest.tsv`: a header line with the columns `path`, `label` and perhaps `frames`, then a line
  per utterance; each path is a .npy file, relative to the manifest. `alignment.tsv` beside it may
  name the places where utterances can be cut, such as between words: with the columns `path` and
  `cuts`, `3:96 5:160` says that the first three characters end by frame 96, and the first five by
  frame 160.
- a Kaldi data folder: `feats.scp` (`utterance file.ark:offset`) with `utt2spk` (speakers) or `text`
  (transcripts), and perhaps `utt2num_frames`. kaldiio reads the archives, also compressed ones.

The label is text: a speaker for speaker verification, a transcript for speech recognition. An scp
file may hold commands; none is ever run.
"""

from __future__ import annotations

import dataclasses
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from gallery_lib.data.folders import Faults, existing, printable, read_text, scan, some, unfit_file
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

MANIFEST, ALIGNMENT, SCP = "manifest.tsv", "alignment.tsv", "feats.scp"
KaldiLabels = Literal["utt2spk", "text"]
Cut = tuple[int, int]  # characters before the cut, frames before the cut
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

    In a Kaldi folder the labels come from the file `kaldi_labels`.

    Raises:
        InputError: the message says what is missing or malformed, where, and what to do. It
            suggests `make_command` if `folder` does not exist, is a file or holds neither layout.
    """
    make = f"Mock data, in a folder of its own: {make_command}"
    hint = f"It should hold {MANIFEST}, or Kaldi's {SCP}. {make}"
    folder = existing(folder, "folder of features", hint)
    if (folder / MANIFEST).is_file():
        utterances = list(_from_tsv(folder / MANIFEST))
    elif (folder / SCP).is_file():
        utterances = list(_from_kaldi(folder, kaldi_labels))
    else:
        names = [entry.name for entry in scan(folder)]
        raise InputError(
            f"{printable(folder)} has neither {MANIFEST} nor Kaldi's {SCP} in it. It holds "
            f"{some(names) or 'nothing'}. {make}",
            parameter="data_dir",
        )
    if not utterances:
        raise InputError(f"{printable(folder)} lists no utterances.", parameter="data_dir")
    return utterances


def read_folder(
    folder: Path, kaldi_labels: KaldiLabels, make_command: str, dims: int
) -> list[Utterance]:
    """Return the utterances of `folder` with their numbers of frames, for a model of `dims`.

    Raises:
        InputError: as `list_utterances` does, for missing files, and for another first width.
    """
    utterances = list_utterances(folder, kaldi_labels, make_command)
    refuse_missing_files(folder, utterances)
    if (width := shape(utterances[0])[1]) != dims:
        raise unfit_file(
            utterances[0].path, f"{width} values a frame; the model takes {dims} values a frame."
        )
    return with_frames(utterances)


def _from_tsv(manifest: Path) -> Iterator[Utterance]:
    lines = _lines(manifest)
    columns = lines[0][1].split("\t") if lines else []
    if not {"path", "label"} <= set(columns):
        problem = f"it must begin with the columns path and label and a tab; found {columns}."
        raise unfit_file(manifest, problem)
    faults = Faults()
    for number, line in lines[1:]:
        with faults.noted():
            values = line.split("\t")
            if len(values) != len(columns):
                problem = f"{len(values)} values for {len(columns)} columns: {line!r}."
                raise unfit_file(manifest, f"line {number}: {problem}")
            row = dict(zip(columns, values, strict=True))
            path, label = row["path"], row["label"].strip()
            if not path or not label:
                problem = f"path and label must not be empty: {line!r}."
                raise unfit_file(manifest, f"line {number}: {problem}")
            frames = _whole_number(manifest, number, row["frames"]) if row.get("frames") else None
            yield Utterance(path, label, manifest.parent / path, frames=frames)
    faults.refuse()


def _from_kaldi(folder: Path, kaldi_labels: KaldiLabels) -> Iterator[Utterance]:
    if not (folder / kaldi_labels).is_file():
        raise InputError(
            f"{folder} has {SCP} but no {kaldi_labels}, which holds a line `utterance label` for "
            "each utterance.",
            parameter="data_dir",
        )
    labels = {name: label for _, name, label in _pairs(folder / kaldi_labels)}
    counts = folder / "utt2num_frames"
    frames = {
        name: _whole_number(counts, number, value)
        for number, name, value in (_pairs(counts) if counts.is_file() else ())
    }
    for number, name, location in _pairs(folder / SCP):
        if name not in labels:
            problem = f"it has no line for utterance {name}, which {SCP} lists."
            raise unfit_file(folder / kaldi_labels, problem)
        match = _ARCHIVE.fullmatch(location)
        if match is None or "|" in location:
            raise unfit_file(
                folder / SCP,
                f"line {number}: {location!r} is not `file.ark:offset`. Commands and ranges are "
                "not read: write plain archives with Kaldi's copy-feats.",
            )
        path = Path(match["path"])
        # Kaldi's own paths are relative to where its scripts ran
        if not path.is_absolute() and (folder / path).exists():
            path = folder / path
        yield Utterance(name, labels[name], path.absolute(), int(match["offset"]), frames.get(name))


def _lines(path: Path) -> list[tuple[int, str]]:
    return [
        (number, line.rstrip("\r"))
        for number, line in enumerate(read_text(path).split("\n"), 1)
        if line.strip()
    ]


def _pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, first word, rest) for each line of a Kaldi text file."""
    for number, line in _lines(path):
        words = line.split(maxsplit=1)
        if len(words) != 2:
            problem = f"line {number}: expected `utterance value`, found {line!r}."
            raise unfit_file(path, problem)
        yield number, words[0], words[1].strip()


def _whole_number(path: Path, number: int, value: str) -> int:
    if not value.strip().isdecimal() or int(value) == 0:
        raise unfit_file(path, f"line {number}: {value!r} is not a number of frames.")
    return int(value)


def write(
    folder: Path,
    rows: Iterable[tuple[str, str, int]],
    alignment: Sequence[tuple[str, Sequence[Cut]]] = (),
) -> None:
    """Write `manifest.tsv` in `folder` from rows of (path below the folder, label, frames).

    `alignment` has rows of (path, cuts) for `alignment.tsv`, which is written first.
    """
    if alignment:
        cuts = (f"{path}\t{' '.join(f'{a}:{b}' for a, b in cuts)}" for path, cuts in alignment)
        text = "\n".join(["path\tcuts", *cuts, ""])
        (folder / ALIGNMENT).write_text(text, encoding="utf-8")
    lines = ["path\tlabel\tframes", *(f"{path}\t{label}\t{frames}" for path, label, frames in rows)]
    with atomic_write(folder / MANIFEST) as file:
        file.writelines(f"{line}\n" for line in lines)


def read_alignment(folder: Path) -> dict[str, list[Cut]]:
    """Return the cuts of each utterance by name, or an empty dict if the file does not exist."""
    file = folder / ALIGNMENT
    cuts_by_name: dict[str, list[Cut]] = {}
    for number, line in _lines(file)[1:] if file.is_file() else ():
        try:
            name, cuts = line.split("\t")
            cuts_by_name[name] = [
                (int(characters), int(frame))
                for characters, frame in (cut.split(":") for cut in cuts.split())
            ]
        except ValueError:
            problem = f"line {number}: expected an utterance, a tab and cuts like 3:96: {line!r}."
            raise unfit_file(file, problem) from None
    return cuts_by_name


def shape(utterance: Utterance) -> tuple[int, int]:
    """Return (frames, dims) of the utterance's matrix, from its header alone.

    Raises:
        InputError: if the file is not readable, truncated, or no matrix of one frame at least.
    """
    try:
        if utterance.offset is None:
            sizes = np.lib.format.open_memmap(utterance.path, mode="r").shape
        else:
            with utterance.path.open("rb") as file:
                sizes = _kaldi_shape(file, utterance.offset)
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise _unreadable(utterance, error) from error
    if len(sizes) != 2 or min(sizes) < 1:
        raise _unfit(utterance, f"it holds {list(sizes)}, not a matrix [frames, dims].")
    return sizes[0], sizes[1]


def with_frames(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return the same utterances, each with its number of frames, from its header if need be."""
    return [
        u if u.frames is not None else dataclasses.replace(u, frames=shape(u)[0])
        for u in utterances
    ]


def load(utterance: Utterance, dims: int | None = None) -> NDArray[np.float32]:
    """Return the utterance's features, float32 [frames, dims].

    Raises:
        InputError: if the file is not readable or holds anything but finite numbers [frames, dims],
            with the listed frames and, unless None, `dims` values a frame.
    """
    try:
        with utterance.path.open("rb") as file:
            if utterance.offset is None:
                array = np.lib.format.read_array(file, allow_pickle=False)
            else:
                from kaldiio.matio import read_kaldi

                # only a matrix, and none of the other things that kaldiio would read
                _kaldi_shape(file, utterance.offset)
                file.seek(utterance.offset)
                array = read_kaldi(file)
    except (OSError, ValueError, EOFError, AssertionError, struct.error) as error:
        raise _unreadable(utterance, error) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        what = f"{array.dtype} {list(array.shape)}"
        raise _unfit(utterance, f"it holds {what}, not numbers [frames, dims].")
    refuse_other_sizes(utterance, (len(array), array.shape[1]), dims)
    features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise _unfit(utterance, "it holds values that are not finite (NaN or infinity).")
    return features


def refuse_other_sizes(utterance: Utterance, sizes: tuple[int, int], dims: int | None) -> None:
    """Raise InputError if (frames, dims) are not those that are listed and wanted."""
    if dims is not None and sizes[1] != dims:
        turned = " It seems transposed: it must be [frames, values]." if sizes[0] == dims else ""
        raise _unfit(utterance, f"{sizes[1]} values a frame; it must have {dims}.{turned}")
    if utterance.frames not in (None, sizes[0]):
        raise _unfit(utterance, f"{sizes[0]} frames, and {utterance.frames} are listed.")


def _unfit(utterance: Utterance, problem: str) -> InputError:
    return unfit_file(utterance.path, f"{problem} Utterance: {printable(utterance.name)}.")


def refuse_missing_files(folder: Path, utterances: Sequence[Utterance]) -> None:
    """Raise InputError with the first feature file of `utterances` that is no file, if any."""
    paths = dict.fromkeys(utterance.path for utterance in utterances)
    if missing := [path for path in paths if not path.is_file()]:
        raise InputError(
            f"{printable(folder)} lists {len(missing)} feature file(s) that do not exist, the "
            f"first being {printable(missing[0])}. Complete the folder, or leave them out of the "
            "list.",
            parameter="data_dir",
        )


def statistics(
    utterances: Sequence[Utterance], count: int = 64
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return mean and standard deviation, float32 [dims] each, of the frames of some utterances.

    At most `count` utterances are read, evenly spread over the list. Deviations are at least 1e-5.
    """
    places = np.linspace(0, len(utterances) - 1, min(count, len(utterances)))
    sample = [utterances[int(i)] for i in places]
    dims = shape(sample[0])[1]
    frames = np.concatenate([load(utterance, dims) for utterance in sample]).astype(np.float64)
    return frames.mean(0).astype(np.float32), np.maximum(frames.std(0), 1e-5).astype(np.float32)


def _kaldi_shape(file: BinaryIO, offset: int) -> tuple[int, int]:
    """Return (rows, columns) from the header of the binary Kaldi matrix at `offset`.

    The header is a token and the two sizes, each after a byte 4. Compressed matrices (CM) have four
    values after the token; the last two are the sizes. Other content raises ValueError.
    """
    file.seek(offset)
    header = file.read(22)
    if header[:5] in (b"\0BFM ", b"\0BDM "):
        _, rows, _, columns = struct.unpack("<bibi", header[5:15])
        needed = offset + 15 + rows * columns * (4 if header[2:3] == b"F" else 8)
    elif header[:4] == b"\0BCM" and b" " in header[4:6]:
        start = header.index(b" ", 4) + 1
        _, _, rows, columns = struct.unpack("<ffii", header[start : start + 16])
        value_bytes = 2 if header[4:5] == b"2" else 1
        column_bytes = 8 if header[4:5] == b" " else 0
        needed = offset + start + 16 + columns * (rows * value_bytes + column_bytes)
    else:
        raise ValueError(f"no binary Kaldi matrix at offset {offset}")
    if (size := os.fstat(file.fileno()).st_size) < needed:
        raise ValueError(f"it is truncated: {size} of {needed} bytes")
    return rows, columns


def _unreadable(utterance: Utterance, error: BaseException) -> InputError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return _unfit(utterance, f"cannot be read: {reason}. Is the data folder complete?")
