"""Write a folder of data completely or not at all, and go on after an interruption.

`make` writes into the hidden folder `.partial` of the target, moves the content up at the end, and
writes `made.json` last, with what was requested. A second call with the same request writes
nothing. An interrupted or killed call leaves `.partial` behind, and the same call goes on from
there. A call never changes a folder that holds anything else. What becomes of files later is not
looked at: delete a damaged folder and make it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.progress import Progress
from gallery_lib.data.folders import printable
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.files import atomic_write, is_temporary, locked
from gallery_lib.system.processes import tell

RECORD = "made.json"
_PARTIAL = ".partial"
_CHUNK = 64  # jobs between two looks at Ctrl-C

Write = Callable[..., None]


@dataclass(frozen=True)
class Made:
    """Result of `make`: the folder, its number of files, whether they are new, and the time.

    `notices` has lines about what was left out.
    """

    root: Path
    files: int
    now: bool
    seconds: float
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = f"made now in {self.seconds:.1f} s" if self.now else "complete already"
        first = f"{printable(self.root)}: {self.files} files, {state}"
        return "\n".join([first, *self.notices])


def make(
    root: Path | str,
    record: dict[str, Any],
    jobs: Mapping[str, tuple[Any, ...]],
    write: Write,
    *,
    progress: bool = True,
) -> Made:
    """Write the data `record` into `root`, unless `root` holds it.

    Of two simultaneous calls, one waits for the other.

    Args:
        root: the folder.
        record: what the data are, in plain values.
        jobs: arguments of `write` by the path below `root` of the file that it writes last.
        write: called as `write(path, *arguments)`; writes one or more files, `path` last and
            atomically. Threads call it.
        progress: whether to show progress.

    Raises:
        InputError: with nothing changed, when `root` holds anything else.
        RunFailed: when writing fails.
    """
    started = time.perf_counter()
    root = Path(root).expanduser().absolute()
    record = json.loads(json.dumps(record))
    partial = root / _PARTIAL
    now = False
    try:
        if not (complete := _complete(root, record)):
            root.mkdir(parents=True, exist_ok=True)
            with locked(root, waiting=lambda: tell(f"waiting for another process: {root}")):
                # complete by now if another process held the lock and made the data
                if now := not (complete := _complete(root, record)):
                    there = _begin(partial, record)
                    missing = {name: given for name, given in jobs.items() if name not in there}
                    _write(partial, missing, write, progress)
                    complete = _finish(root, partial, record)
    except OSError as error:
        raise RunFailed(
            f"Could not write data in {printable(root)}: {error}. Free some space, or give another "
            "folder; run it again to go on from there."
        ) from error
    return Made(root, complete["files"], now, time.perf_counter() - started)


def is_made(root: Path) -> bool:
    """Return whether `make` has completed the folder `root`."""
    return "files" in _read(root / RECORD)


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) and "made" in content else {}
    return {}


def _complete(root: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return what is recorded of the data in `root`; nothing if they are yet to be made."""
    if not root.exists():
        return {}
    if not root.is_dir():
        raise InputError(f"{root} is a file; give a folder.", parameter="out")
    begun, complete = _read(root / _PARTIAL / RECORD), _read(root / RECORD)
    if not begun and not complete and any(entry.name != _PARTIAL for entry in root.iterdir()):
        raise InputError(
            f"{printable(root)} is not empty and holds no data of this version; nothing was "
            "changed. Give another folder.",
            parameter="out",
        )
    if (made := (begun or complete or {"made": record})["made"]) != record:
        raise InputError(
            f"{printable(root)} holds other data, {made}, not {record}; nothing was changed. Give "
            "another folder, or move that one away.",
            parameter="out",
        )
    return {} if begun else complete


def _begin(partial: Path, record: dict[str, Any]) -> set[str]:
    """Prepare the folder `partial` and return what an interrupted call has made in it."""
    if not _read(partial / RECORD):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with atomic_write(partial / RECORD) as file:
            json.dump({"made": record}, file)
    for entry in partial.parent.iterdir():  # a call was killed while it moved the content up
        if entry != partial:
            entry.replace(partial / entry.name)
    there = set()
    for path in _files(partial):
        # A machine that lost its power may leave an empty file under a final name.
        if is_temporary(path.name) or not path.stat().st_size:
            path.unlink()
        else:
            there.add(path.relative_to(partial).as_posix())
    return there


def _finish(root: Path, partial: Path, record: dict[str, Any]) -> dict[str, Any]:
    complete = {"made": record, "files": len(_files(partial)) - 1}
    with atomic_write(partial / RECORD) as file:
        json.dump(complete, file, indent=1)
    for entry in sorted(partial.iterdir(), key=lambda entry: entry.name == RECORD):
        entry.replace(root / entry.name)
    partial.rmdir()
    return complete


def _files(root: Path) -> list[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(root) for name in names]


def _write(folder: Path, jobs: Mapping[str, tuple[Any, ...]], write: Write, progress: bool) -> None:
    def do(job: tuple[str, tuple[Any, ...]]) -> None:
        path = folder / job[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, *job[1])

    work = list(jobs.items())
    # numpy and the encoder of images release the GIL
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    with Progress(enabled=progress) as shown:
        try:
            for start in range(0, len(work), _CHUNK):
                shown.show("mock data", count=start, total=len(work), unit="files")
                list(pool.map(do, work[start : start + _CHUNK]))
        finally:
            pool.shutdown(cancel_futures=True)
