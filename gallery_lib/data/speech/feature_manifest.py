"""List the utterances and labels of a folder of acoustic features.

The files in a folder tell which of two layouts it has:

- `manifest.tsv`: a header line with the columns `path`, `label` and perhaps `frames`, then a line
  per utterance; each path is a .npy file [frames, dims], relative to the manifest;
- a Kaldi data folder: `feats.scp` (`utterance file.ark:offset`) with `utt2spk` (speakers) or `text`
  (transcripts), and perhaps `utt2num_frames`.

The label is text: a speaker for speaker verification, a transcript for speech recognition. No
feature file is opened (feature_files.py reads them). An scp file may hold commands; none is ever
run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gallery_lib.data.folder_walk import printable, scan, some
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

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

    In a Kaldi folder the labels come from the file `kaldi_labels`.

    Raises:
        InputError: the message says what is missing or malformed, where, and what to do. It
            suggests `make_command` if `folder` does not exist, is a file or holds neither layout.
    """
    folder = Path(folder).expanduser().absolute()
    shown = printable(folder)
    make = f"Mock data, in a folder of its own: {make_command}"
    try:
        what = "" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
    except OSError as error:
        raise InputError(
            f"Cannot read the folder of features {shown}: {error.strerror}.",
            parameter="data_dir",
        ) from error
    if what:
        raise InputError(
            f"The folder of features {shown} {what}. It should hold {MANIFEST}, or Kaldi's {SCP}. "
            f"{make}",
            parameter="data_dir",
        )
    if (folder / MANIFEST).is_file():
        utterances = list(_from_tsv(folder / MANIFEST))
    elif (folder / SCP).is_file():
        utterances = list(_from_kaldi(folder, kaldi_labels))
    else:
        names = [entry.name for entry in scan(folder)]
        raise InputError(
            f"{shown} has neither {MANIFEST} nor Kaldi's {SCP} in it. It holds "
            f"{some(names) or 'nothing'}. {make}",
            parameter="data_dir",
        )
    if not utterances:
        raise InputError(f"{shown} lists no utterances.", parameter="data_dir")
    return utterances


def write(folder: Path, rows: Iterable[tuple[str, str, int]]) -> None:
    """Write `manifest.tsv` in `folder` from rows of (path below the folder, label, frames)."""
    lines = ["path\tlabel\tframes", *(f"{path}\t{label}\t{frames}" for path, label, frames in rows)]
    with atomic_write(folder / MANIFEST) as file:
        file.writelines(f"{line}\n" for line in lines)


def _from_tsv(manifest: Path) -> Iterator[Utterance]:
    lines = _lines(manifest)
    columns = lines[0][1].split("\t") if lines else []
    if not {"path", "label"} <= set(columns):
        raise InputError(
            f"{manifest} must begin with a line that names the columns path and label, separated "
            f"by a tab; found {columns}.",
            parameter=str(manifest),
        )
    for number, line in lines[1:]:
        values = line.split("\t")
        if len(values) != len(columns):
            raise InputError(
                f"{manifest}, line {number}: {len(values)} values for {len(columns)} columns "
                f"(separated by tabs): {line!r}.",
                parameter=str(manifest),
            )
        row = dict(zip(columns, values, strict=True))
        if not row["path"] or not row["label"].strip():
            raise InputError(
                f"{manifest}, line {number}: path and label must not be empty: {line!r}.",
                parameter=str(manifest),
            )
        frames = _whole_number(manifest, number, row["frames"]) if row.get("frames") else None
        yield Utterance(
            row["path"], row["label"].strip(), manifest.parent / row["path"], frames=frames
        )


def _from_kaldi(folder: Path, kaldi_labels: KaldiLabels) -> Iterator[Utterance]:
    if not (folder / kaldi_labels).is_file():
        raise InputError(
            f"{folder} has {SCP} but no {kaldi_labels}, which holds a line `utterance label` for "
            "each utterance.",
            parameter="data_dir",
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
                f"{folder / kaldi_labels} has no line for utterance {name}, which {SCP} lists.",
                parameter=str(folder / kaldi_labels),
            )
        match = _ARCHIVE.fullmatch(location)
        if match is None or "|" in location:
            raise InputError(
                f"{folder / SCP}, line {number}: {location!r} is not `file.ark:offset`. "
                "Commands and ranges are not read: write plain archives with Kaldi's copy-feats.",
                parameter=str(folder / SCP),
            )
        path = Path(match["path"])
        # Kaldi's own paths are relative to where its scripts ran
        if not path.is_absolute() and (folder / path).exists():
            path = folder / path
        yield Utterance(name, labels[name], path.absolute(), int(match["offset"]), frames.get(name))


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number, line) of each line of a UTF-8 text file that is not blank.

    Raises:
        InputError: if the file cannot be read.
    """
    if path.exists() and not path.is_file():  # reading a pipe would block for ever
        raise InputError(
            f"{printable(path)} is no file. It must be a text file in UTF-8.", parameter=str(path)
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"Cannot read {path}: {error}. It must be a text file in UTF-8.",
            parameter=str(path),
        ) from error
    return [
        (number, line.rstrip("\r"))
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip()
    ]


def _pairs(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, first word, rest) for each line of a Kaldi text file.

    Raises:
        InputError: for a line of one word.
    """
    for number, line in _lines(path):
        words = line.split(maxsplit=1)
        if len(words) != 2:
            raise InputError(
                f"{path}, line {number}: expected `utterance value`, found {line!r}.",
                parameter=str(path),
            )
        yield number, words[0], words[1].strip()


def _whole_number(path: Path, number: int, value: str) -> int:
    if not value.strip().isdecimal() or int(value) == 0:
        raise InputError(
            f"{path}, line {number}: {value!r} is not a number of frames.", parameter=str(path)
        )
    return int(value)
