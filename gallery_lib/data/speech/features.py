"""List, read and check a folder of acoustic features, each utterance one .npy file [frames, dims].

`manifest.tsv` has a header line with the columns `path`, `label` and perhaps `frames`, then a line
per utterance; paths are relative to the manifest. The label is text: a speaker for speaker
verification, a transcript for speech recognition. Mock speech has an `alignment.tsv` beside it,
with the places between words where utterances can be cut: with the columns `path` and `cuts`,
`3:96 5:160` says that three characters end by frame 96, and five by frame 160. For speaker
verification every speaker needs two utterances, and no speaker may be in both splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gallery_lib.data.folders import (
    SPLITS,
    Faults,
    Summary,
    existing,
    printable,
    read_text,
    scan,
    some,
    unfit_file,
)
from gallery_lib.data.speech.characters import Characters, tidy, unknown_notice
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

MANIFEST, ALIGNMENT = "manifest.tsv", "alignment.tsv"
PER_ITEM = 2  # utterances of a speaker in one item
_SAMPLES = 64
Cut = tuple[int, int]  # characters before the cut, frames before the cut
Statistics = tuple[NDArray[np.float32], NDArray[np.float32]]  # mean and standard deviation [dims]


@dataclass(frozen=True)
class Utterance:
    """One utterance of a folder: its path in the manifest, its label and its file."""

    name: str
    label: str
    path: Path
    frames: int


def list_utterances(folder: Path | str, make_command: str) -> list[Utterance]:
    """Return the utterances of `folder` in the order of its list.

    Raises:
        InputError: the message says what is missing or malformed, where, and what to do. It
            suggests `make_command` if `folder` does not exist, is a file or has no manifest.
    """
    make = f"Mock data, in a folder of its own: {make_command}"
    folder = existing(folder, "folder of features", f"It should hold {MANIFEST}. {make}")
    manifest = folder / MANIFEST
    if not manifest.is_file():
        names = [entry.name for entry in scan(folder)]
        raise InputError(
            f"{printable(folder)} has no {MANIFEST} in it. It holds {some(names) or 'nothing'}. "
            f"{make}",
            parameter="data_dir",
        )
    lines = _lines(manifest)
    columns = lines[0][1].split("\t") if lines else []
    if not {"path", "label"} <= set(columns):
        problem = f"it must begin with the columns path and label and a tab; found {columns}."
        raise unfit_file(manifest, problem)
    faults, utterances = Faults(), []
    for number, line in lines[1:]:
        with faults.noted():
            values = line.split("\t")
            if len(values) != len(columns):
                problem = f"{len(values)} values for {len(columns)} columns: {line!r}."
                raise unfit_file(manifest, f"line {number}: {problem}")
            utterances.append(_utterance(manifest, number, dict(zip(columns, values, strict=True))))
    faults.refuse()
    if not utterances:
        raise InputError(f"{printable(folder)} lists no utterances.", parameter="data_dir")
    return utterances


def _utterance(manifest: Path, number: int, row: dict[str, str]) -> Utterance:
    name, label, frames = row["path"], row["label"].strip(), row.get("frames", "").strip()
    path = manifest.parent / name
    problem = ""
    if not name or not label:
        problem = "path and label must not be empty."
    elif frames and not (frames.isdecimal() and int(frames)):
        problem = f"{frames!r} is not a number of frames."
    elif not path.is_file():
        problem = f"{printable(name)} is no file. Complete the folder, or take the line out."
    if problem:
        raise unfit_file(manifest, f"line {number}: {problem}")
    return Utterance(name, label, path, int(frames) if frames else len(_read(path)))


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
    rows = (line.split("\t") for _, line in (_lines(file)[1:] if file.is_file() else ()))
    return {
        name: [
            (int(characters), int(frames))
            for characters, frames in (cut.split(":") for cut in cuts.split())
        ]
        for name, cuts in rows
    }


def _read(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise unfit_file(path, f"cannot be read: {reason}. Is the folder complete?") from error
    if array.ndim != 2 or not len(array) or array.dtype.kind not in "fiu":
        what = f"{array.dtype} {list(array.shape)}"
        raise unfit_file(path, f"it holds {what}, not numbers [frames, dims].")
    return array


def load(utterance: Utterance, dims: int) -> NDArray[np.float32]:
    """Return the utterance's features, float32 [frames, dims].

    Raises:
        InputError: if the file is not readable or holds anything but finite numbers [frames, dims],
            with the listed frames and `dims` values a frame.
    """
    path, array = utterance.path, _read(utterance.path)
    frames, width = array.shape
    if width != dims:
        turned = " It seems transposed: it must be [frames, values]." if frames == dims else ""
        raise unfit_file(path, f"{width} values a frame; the model takes {dims}.{turned}")
    if utterance.frames != frames:
        raise unfit_file(path, f"{frames} frames, and {utterance.frames} are listed.")
    features = np.array(array, dtype=np.float32)
    if not np.isfinite(features).all():
        raise unfit_file(path, "it holds values that are not finite (NaN or infinity).")
    return features


def statistics(utterances: Sequence[Utterance], dims: int, count: int = 64) -> Statistics:
    """Return mean and standard deviation, float32 [dims] each, of the frames of some utterances.

    At most `count` utterances are read, evenly spread over the list. Deviations are at least 1e-5.
    """
    places = np.linspace(0, len(utterances) - 1, min(count, len(utterances)))
    sample = [load(utterances[int(i)], dims) for i in places]
    frames = np.concatenate(sample).astype(np.float64)
    return frames.mean(0).astype(np.float32), np.maximum(frames.std(0), 1e-5).astype(np.float32)


def check_features(
    root: Path | str,
    dims: int,
    make_command: str,
    *,
    full: bool = False,
    vocabulary_size: int | None = None,
) -> Summary:
    """Check both splits of `root` and return a summary of their contents.

    `dims` is the number of values a frame. An error suggests `make_command`. 64 files of a split
    are read, all with `full`. Labels are transcripts whose training characters must fit into
    `vocabulary_size` tokens; where that is None they are speakers.

    InputError names all faults found. What depends on whole files is looked at without faults.
    """
    root = Path(root).expanduser().absolute()
    if root.exists():
        existing(root, "data folder", "Give a folder with train/ and val/ in it.")
    utterances: dict[str, list[Utterance]] = {}
    faults = Faults()
    for split in SPLITS:
        with faults.noted():
            listed = utterances[split] = list_utterances(root / split, make_command)
            for utterance in listed[:: 1 if full else max(1, len(listed) // _SAMPLES)]:
                with faults.noted():
                    load(utterance, dims)
    faults.refuse()
    notices: tuple[str, ...] = ()
    if vocabulary_size is None:
        for split, listed in utterances.items():
            with faults.noted():
                by_speaker(listed, 1, root / split)
        with faults.noted():
            refuse_common_speakers(_labels(utterances["train"]), _labels(utterances["val"]), root)
    else:
        train, held_out = ([tidy(u.label) for u in utterances[split]] for split in SPLITS)
        with faults.noted():
            characters = Characters.of(train, vocabulary_size, printable(root / "train"))
            notices = unknown_notice(held_out, characters, root / "val")
    faults.refuse()
    splits = (
        f"{split}: {len(listed)} utterances, {len(_labels(listed))} different labels, "
        f"{sum(utterance.frames for utterance in listed)} frames"
        for split, listed in utterances.items()
    )
    return Summary(root, f"{'; '.join(splits)}; {dims} values a frame", notices)


def _labels(utterances: Iterable[Utterance]) -> set[str]:
    return {utterance.label for utterance in utterances}


def by_speaker(
    utterances: Sequence[Utterance], frames: int, where: Path
) -> dict[str, list[Utterance]]:
    """Return the utterances of at least `frames` frames by speaker, sorted by the speaker's name.

    Raises:
        InputError: for a speaker who has fewer than two such utterances; the message names the
            speaker and the folder `where`.
    """
    result: dict[str, list[Utterance]] = {
        utterance.label: [] for utterance in sorted(utterances, key=lambda u: u.label)
    }
    for utterance in utterances:
        if utterance.frames >= frames:
            result[utterance.label].append(utterance)
    if few := [speaker for speaker, own in result.items() if len(own) < PER_ITEM]:
        raise InputError(
            f"{len(few)} of {len(result)} speakers in {printable(where)} have fewer than "
            f"{PER_ITEM} utterances of {frames} frames or more: {few[0]} has "
            f"{len(result[few[0]])}. A speaker is learned from pairs: leave these out, or use a "
            "smaller sequence_length.",
            parameter="sequence_length",
        )
    return result


def refuse_common_speakers(train: Iterable[str], held_out: Iterable[str], root: Path | str) -> None:
    """Raise InputError if a speaker is in both splits of `root`."""
    if both := sorted(set(train) & set(held_out)):
        raise InputError(
            f"{len(both)} speakers are both in train/ and in val/ of {printable(root)}, {both[0]} "
            "for instance; verification is measured on speakers that were never heard. Move each "
            "to one side.",
            parameter="data_dir",
        )
