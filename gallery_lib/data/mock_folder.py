"""Write a folder of mock data completely or not at all.

`make` fills a hidden folder beside the target and renames the folder at the end. So an interruption
leaves nothing that looks complete. `make` writes `made.json` last, which records the requested data
and a digest of all files. A second call reads the files, compares them with the record and writes
nothing. This suits data sets that take seconds to make. Mock ImageNet may take hours and has code
of its own, which resumes after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.files import locked

RECORD = "made.json"


@dataclass(frozen=True)
class Made:
    """Result of `make`: the folder, its number of files, whether they are new, and the time."""

    root: Path
    files: int
    now: bool
    seconds: float

    def __str__(self) -> str:
        return f"{self.root}: {self.files} files, " + (
            f"made now in {self.seconds:.1f} s" if self.now else "complete already"
        )


def make(root: Path | str, record: dict[str, Any], fill: Callable[[Path], None]) -> Made:
    """Let `fill(folder)` write the data set `record` into `root`, unless `root` holds it.

    `record` describes the data set in plain values. Of two simultaneous calls, one waits for the
    other.

    Raises:
        InputError: with nothing changed, when `root` holds anything else.
        RunFailed: when writing fails.
    """
    started = time.perf_counter()
    root = Path(root).expanduser().absolute()
    record = json.loads(json.dumps(record))
    partial = root.with_name(f".{root.name}.partial")
    if (files := _complete(root, record)) is not None:
        return Made(root, files, False, time.perf_counter() - started)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            with locked(partial):
                # complete by now if another process held the lock and made the data set
                if (files := _complete(root, record)) is not None:
                    return Made(root, files, False, time.perf_counter() - started)
                for leftover in partial.iterdir():
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
                fill(partial)
                files, size_bytes = _contents(partial)
                manifest = {
                    "made": record,
                    "files": files,
                    "bytes": size_bytes,
                    "sha256": _digest(partial),
                }
                (partial / RECORD).write_text(json.dumps(manifest, indent=1) + "\n")
                partial.replace(root)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise RunFailed(f"Could not write mock data in {root}: {error}.") from error
    return Made(root, files, True, time.perf_counter() - started)


def _complete(root: Path, record: dict[str, Any]) -> int | None:
    """Return the number of files of the data set in `root`, or None if there is nothing yet.

    Raises:
        InputError: for anything else.
    """
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return None
    if not root.is_dir():
        raise InputError(f"{root} is a file; give a folder.", parameter="out")
    try:
        manifest = json.loads((root / RECORD).read_text())
        old_record, files, size_bytes = manifest["made"], manifest["files"], manifest["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{root} is not empty and holds no mock data; nothing was changed. "
            "Give another folder.",
            parameter="out",
        ) from None
    if old_record != record:
        raise InputError(
            f"{root} holds other mock data, {old_record}, not {record}; nothing was changed. Give "
            "another folder.",
            parameter="out",
        )
    if _contents(root) != (files, size_bytes):
        raise InputError(
            f"{root} has been changed since it was made: it had {files} files of {size_bytes} "
            "bytes. Move it away and make it again.",
            parameter="out",
        )
    # a data set of an earlier version has no digest
    if manifest.get("sha256", digest := _digest(root)) != digest:
        raise InputError(
            f"{root} has been changed since it was made: a file has other content. Move it away "
            "and make it again.",
            parameter="out",
        )
    return files


def _digest(root: Path) -> str:
    """Return the sha256 of all files below `root` except the record, as 64 hex digits.

    The digest covers the names of the files as well.
    """
    total = hashlib.sha256()
    for path in sorted(
        Path(folder) / name
        for folder, _, names in os.walk(root)
        for name in names
        if name != RECORD
    ):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode("utf-8", "surrogateescape"))
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _contents(root: Path) -> tuple[int, int]:
    """Return the number and the total bytes of all files below `root` except the record."""
    sizes = [
        (Path(folder) / name).stat().st_size
        for folder, _, names in os.walk(root)
        for name in names
        if name != RECORD
    ]
    return len(sizes), sum(sizes)
