"""Read and write `alignment.tsv`, the places where utterances may be cut, such as between words.

The file lies beside a folder's manifest. Its columns are `path` (the utterance's name) and `cuts`.
The cuts `3:96 5:160` say that the first three characters end by frame 96, and the first five by
frame 160. A forced alignment gives such numbers; mock speech knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gallery_lib.errors import InputError

ALIGNMENT = "alignment.tsv"

Cut = tuple[int, int]  # characters before the cut, frames before the cut


def write_alignment(folder: Path, rows: Sequence[tuple[str, Sequence[Cut]]]) -> None:
    """Write `alignment.tsv` in `folder` from rows of (path as in the manifest, cuts)."""
    lines = [
        "path\tcuts",
        *(f"{path}\t{' '.join(f'{a}:{b}' for a, b in cuts)}" for path, cuts in rows),
    ]
    (folder / ALIGNMENT).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_alignment(folder: Path) -> dict[str, list[Cut]]:
    """Return the cuts of each utterance by name, or an empty dict if the file does not exist.

    Raises:
        InputError: for a malformed line.
    """
    file = folder / ALIGNMENT
    if not file.is_file():
        return {}
    cuts_by_name: dict[str, list[Cut]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()[1:], 2):
        try:
            name, cuts = line.split("\t")
            cuts_by_name[name] = [
                (int(characters), int(frame))
                for characters, frame in (cut.split(":") for cut in cuts.split())
            ]
        except ValueError:
            raise InputError(
                f"{file}, line {number}: expected an utterance, a tab and cuts like 3:96, "
                f"found {line!r}.",
                parameter=str(file),
            ) from None
    return cuts_by_name
