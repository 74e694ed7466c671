"""Record of a mock data set on disk: what has been written, and whether it is unchanged.

The record is two files in the root. `manifest.jsonl` has a header line (schema, spec, classes),
then a line per image with path, bytes and sha256. Lines are appended while generating, so that an
interrupted run can resume. A torn or damaged line counts as not written. `manifest.json` holds the
header plus counts. It is written last and atomically, so its presence means *complete*.
`manifest.json` also holds each class folder's modification time. These times show that nothing was
added or removed, without listing 1.35 million files. `verify()` reads every byte. Nothing here ever
changes an image.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gallery_lib.data.images.mock_render import SPLITS, STYLE, MockSpec, class_id
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

SUMMARY = "manifest.json"
LINES = "manifest.jsonl"
SCHEMA = 1
KIND = "mock-imagenet"


@dataclass(frozen=True)
class Entry:
    """One image: path below the root, size in bytes, and sha256 as 64 hex digits."""

    path: str
    size_bytes: int
    sha256: str

    def line(self) -> str:
        """Return the entry as a line of `manifest.jsonl`."""
        return (
            json.dumps({"path": self.path, "bytes": self.size_bytes, "sha256": self.sha256}) + "\n"
        )


def header(spec: MockSpec) -> dict[str, Any]:
    """Return the header of both files; equal headers mean the same data set."""
    classes = [class_id(label) for label in range(spec.classes)]
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "style": STYLE,
        "spec": asdict(spec),
        "classes": classes,
    }


def read_spec(root: Path) -> MockSpec | None:
    """Return the spec of the mock data set in `root`, complete or not.

    Return None if there is no such data set, or one of another version.
    """
    for name in (SUMMARY, LINES):
        try:
            with (root / name).open(encoding="utf-8") as file:
                record = json.loads(file.readline() if name == LINES else file.read())
            spec = MockSpec(**record["spec"])
            if {key: record[key] for key in header(spec)} == header(spec):
                return spec
        except (OSError, ValueError, TypeError, KeyError):  # InputError is a ValueError
            continue
    return None


def start(root: Path, spec: MockSpec) -> None:
    """Claim `root` for `spec`: from now on it reads as incomplete, and as a mock data set."""
    if not (root / LINES).exists():
        with atomic_write(root / LINES) as file:
            file.write(json.dumps(header(spec)) + "\n")
    (root / SUMMARY).unlink(missing_ok=True)


def read_entries(root: Path) -> dict[str, Entry]:
    """Return the entries by path; the last line of a path wins, damaged lines are left out."""
    entries = {}
    for line in _lines(root):
        try:
            item = json.loads(line)
            entries[item["path"]] = Entry(item["path"], int(item["bytes"]), item["sha256"])
        except (ValueError, TypeError, KeyError):
            continue
    return entries


def _lines(root: Path) -> Iterator[str]:
    try:
        with (root / LINES).open(encoding="utf-8", errors="replace") as file:
            file.readline()
            yield from file
    except FileNotFoundError:
        return


def finish(root: Path, spec: MockSpec, entries: dict[str, Entry]) -> None:
    """Write both files in final form: entries in order, then the summary that means *complete*."""
    text = (
        json.dumps(header(spec))
        + "\n"
        + "".join(entries[path].line() for split in SPLITS for path in paths(spec, split))
    )
    with atomic_write(root / LINES) as file:
        file.write(text)
    summary = header(spec) | {
        "counts": {split: spec.count(split) for split in SPLITS},
        "bytes": sum(entry.size_bytes for entry in entries.values()),
        "folder_times": folder_times(root, spec),
    }
    with atomic_write(root / SUMMARY) as file:
        json.dump(summary, file, indent=1)


def paths(spec: MockSpec, split: str) -> Iterator[str]:
    """Return an iterator over the paths of all images of `split`, in order of their indices."""
    return (spec.path(split, index) for index in range(spec.count(split)))


def folders(spec: MockSpec) -> list[str]:
    """Return the class folders, relative to the root, such as `train/n00000001`."""
    return [f"{split}/{class_id(label)}" for split in SPLITS for label in range(spec.classes)]


def folder_times(root: Path, spec: MockSpec) -> dict[str, int | None]:
    """Return each class folder's modification time in nanoseconds, or None if it is missing."""
    return {
        name: (root / name).stat().st_mtime_ns if (root / name).is_dir() else None
        for name in folders(spec)
    }


def untouched(root: Path, spec: MockSpec) -> bool:
    """Return whether `root` is complete and its class folders are unchanged since then.

    Unchanged means that no file has been added, removed or renamed in a class folder.
    """
    try:
        summary = json.loads((root / SUMMARY).read_text(encoding="utf-8"))
        return summary["folder_times"] == folder_times(root, spec)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def sizes_on_disk(root: Path, spec: MockSpec) -> dict[str, int]:
    """Return the size in bytes of every file in the class folders, by path below the root."""
    sizes: dict[str, int] = {}
    for name in folders(spec):
        if (root / name).is_dir():
            with os.scandir(root / name) as entries:
                sizes |= {f"{name}/{entry.name}": entry.stat().st_size for entry in entries}
    return sizes


def verify(root: Path | str) -> list[str]:
    """Read the mock data set in `root` in full and return one string per problem.

    Each string names the file. `verify` finds incomplete sets and files that are missing,
    truncated, altered or extra. An empty list means that every byte is as generated. Raises
    InputError when `root` holds no mock data set.
    """
    root = Path(root)
    spec = read_spec(root)
    if spec is None:
        what = (
            "does not exist"
            if not root.exists()
            else "holds no mock data set of this version (no readable manifest.json)"
        )
        raise InputError(
            f"{root} {what}. Make one with: python3 data_prep/mock_imagenet.py --out NEW_FOLDER",
            parameter="folder",
        )
    problems = []
    if not (root / SUMMARY).is_file():
        problems.append(f"incomplete: {root}: generation has not finished; run it again to go on")
    entries = read_entries(root)
    expected = {path for split in SPLITS for path in paths(spec, split)}
    if unlisted := len(expected - entries.keys()):
        problems.append(
            f"incomplete: {root / LINES}: {unlisted} of {spec.total} images have no readable line"
        )

    by_folder: dict[str, list[str]] = {name: [] for name in folders(spec)}
    for path in sorted(expected):
        by_folder[path.rpartition("/")[0]].append(path)
    with ThreadPoolExecutor() as pool:  # hashing and reading release the GIL
        for listed in by_folder.values():
            problems += [
                problem
                for problem in pool.map(
                    lambda path: _problem(root, path, entries.get(path)), listed
                )
                if problem
            ]
    return problems + _extra_files(root, expected)


def _problem(root: Path, path: str, entry: Entry | None) -> str | None:
    try:
        data = (root / path).read_bytes()
    except FileNotFoundError:
        return f"missing: {path}"
    except OSError as error:
        return f"unreadable: {path}: {error.strerror}"
    if entry is None:
        return None  # counted as incomplete
    if len(data) < entry.size_bytes:
        return f"truncated: {path} has {len(data)} of {entry.size_bytes} bytes"
    if len(data) > entry.size_bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        return f"altered: {path} has not the content that was generated"
    return None


def _extra_files(root: Path, expected: set[str]) -> list[str]:
    known = expected | {SUMMARY, LINES}
    extra = []
    for folder, _, names in os.walk(root):
        prefix = Path(folder).relative_to(root).as_posix()
        extra += [
            path
            for name in names
            if (path := name if prefix == "." else f"{prefix}/{name}") not in known
        ]
    return [f"extra: {path} is not part of the data set" for path in sorted(extra)]
