"""List and read a folder of acoustic features, each utterance one .npy file [frames, dims].

`manifest.tsv` has a header line with the columns `path`, `label` and perhaps `frames`, then a line
per utterance; paths are relative to the manifest. The label is text: a speaker for speaker
verification, a transcript for speech recognition. `alignment.tsv` beside it may name the places
where utterances can be cut, such as between words: with the columns `path` and `cuts`, `3:96 5:160`
says that the first three characters end by frame 96, and the first five by frame 160.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gallery_lib.data.folders import Faults, existing, printable, read_text, scan, some, unfit_file
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

MANIFEST, ALIGNMENT = "manifest.tsv", "alignment.tsv"
Cut = tuple[int, int]  # characters before the cut, frames before the cut
Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and standard deviation [dims]


@dataclass(frozen=True)
class Utterance:
    """One utterance of a folder: its path in the manifest, its label and its file."""

    name: str
    label: str
    path: Path
    frames: int | None = None  # None if the folder does not list it


def list_utterances(folder: Path | str, make_command: str) -> list[Utterance]:
    """Return the utterances of `folder` in the order of its list.

    Raises:
        InputError: the message says what is missing or malformed, where, and what to do. It
            suggests `make_command` if `folder` does not exist, is a file or has no manifest.
    """
    make = f"Mock data, in a folder of its own: {make_command}"
    folder = existing(folder, "folder of features", f"It should hold {MANIFEST}. {make}")
    if not (folder / MANIFEST).is_file():
        names = [entry.name for entry in scan(folder)]
        raise InputError(
            f"{printable(folder)} has no {MANIFEST} in it. It holds {some(names) or 'nothing'}. "
            f"{make}",
            parameter="data_dir",
        )
    utterances = list(_from_tsv(folder / MANIFEST))
    if not utterances:
        raise InputError(f"{printable(folder)} lists no utterances.", parameter="data_dir")
    return utterances


def read_folder(folder: Path, make_command: str, dims: int) -> list[Utterance]:
    """Return the utterances of `folder` with their numbers of frames, for a model of `dims`.

    Raises:
        InputError: as `list_utterances` does, for missing files, and for another first width.
    """
    utterances = list_utterances(folder, make_command)
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
            frames = row.get("frames", "").strip()
            if frames and not (frames.isdecimal() and int(frames)):
                problem = f"{frames!r} is not a number of frames."
                raise unfit_file(manifest, f"line {number}: {problem}")
            yield Utterance(path, label, manifest.parent / path, int(frames) if frames else None)
    faults.refuse()


def _lines(path: Path) -> list[tuple[int, str]]:
    return [
        (number, line.rstrip("\r"))
        for number, line in enumerate(read_text(path).split("\n"), 1)
        if line.strip()
    ]


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
        sizes = np.lib.format.open_memmap(utterance.path, mode="r").shape
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(utterance, error) from error
    if len(sizes) != 2 or min(sizes) < 1:
        raise unfit_file(utterance.path, f"it holds {list(sizes)}, not a matrix [frames, dims].")
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
    path = utterance.path
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(utterance, error) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        what = f"{array.dtype} {list(array.shape)}"
        raise unfit_file(path, f"it holds {what}, not numbers [frames, dims].")
    frames, width = array.shape
    if dims is not None and width != dims:
        turned = " It seems transposed: it must be [frames, values]." if frames == dims else ""
        raise unfit_file(path, f"{width} values a frame; it must have {dims}.{turned}")
    if utterance.frames not in (None, frames):
        raise unfit_file(path, f"{frames} frames, and {utterance.frames} are listed.")
    features = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise unfit_file(path, "it holds values that are not finite (NaN or infinity).")
    return features


def _unreadable(utterance: Utterance, error: BaseException) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return unfit_file(utterance.path, f"cannot be read: {reason}. Is the data folder complete?")


def refuse_missing_files(folder: Path, utterances: Sequence[Utterance]) -> None:
    """Raise InputError with the first feature file of `utterances` that is no file, if any."""
    if missing := [utterance.path for utterance in utterances if not utterance.path.is_file()]:
        raise InputError(
            f"{printable(folder)} lists {len(missing)} feature file(s) that do not exist, the "
            f"first being {printable(missing[0])}. Complete the folder, or leave them out of the "
            "list.",
            parameter="data_dir",
        )


def statistics(utterances: Sequence[Utterance], count: int = 64) -> Statistics:
    """Return mean and standard deviation, float32 [dims] each, of the frames of some utterances.

    At most `count` utterances are read, evenly spread over the list. Deviations are at least 1e-5.
    """
    places = np.linspace(0, len(utterances) - 1, min(count, len(utterances)))
    sample = [utterances[int(i)] for i in places]
    dims = shape(sample[0])[1]
    frames = np.concatenate([load(utterance, dims) for utterance in sample]).astype(np.float64)
    return frames.mean(0).astype(np.float32), np.maximum(frames.std(0), 1e-5).astype(np.float32)
