"""Write a folder of data completely or not at all, and go on after an interruption.

`make` writes into the hidden folder `.partial` of the target, moves the content up at the end, and
writes `made.json` last. The record holds what was requested and the SHA-256 digest of each file. A
second call compares the folder with the record and writes nothing. An interrupted or killed call
leaves `.partial` behind, and the same call goes on from there. A call never changes a folder that
holds anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.console.progress import Progress, busy
from gallery_lib.data.folders import printable, some
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.files import atomic_write, is_temporary, locked
from gallery_lib.system.processes import die_with_parent, tell

RECORD = "made.json"
_PARTIAL = ".partial"
_SPARE_BYTES = 16 * 1024 * 1024
_CHUNK = 16  # jobs that a process gets at a time
_DIGEST_LIMIT = 2**30
"""Bytes up to which a complete folder is read on each call; of a larger one only sizes count."""

Write = Callable[..., None]
Chunk = Sequence[tuple[Path, tuple[Any, ...]]]  # paths and arguments of `write`


@dataclass(frozen=True)
class Made:
    """Result of `make`: the folder, its number of files, whether they are new, and the time.

    `holds` says what is in them, and `notices` has lines about what was left out.
    """

    root: Path
    files: int
    now: bool
    seconds: float
    holds: str = ""
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        state = f"made now in {self.seconds:.1f} s" if self.now else "complete already"
        holds = f"{self.holds}; " if self.holds else ""
        first = f"{printable(self.root)}: {holds}{self.files} files, {state}"
        return "\n".join([first, *self.notices])


def make(
    root: Path | str,
    record: dict[str, Any],
    jobs: Mapping[str, tuple[Any, ...]],
    write: Write,
    *,
    workers: int | None = None,
    job_bytes: int = 0,
    progress: bool = True,
) -> Made:
    """Write the data `record` into `root`, unless `root` holds it.

    Of two simultaneous calls, one waits for the other. No worker process outlives the call.

    Args:
        root: the folder.
        record: what the data are, in plain values.
        jobs: arguments of `write` by the path below `root` of the file that it writes last.
        write: called as `write(path, *arguments)`; writes one or more files, `path` last and
            atomically. It must be picklable.
        workers: processes; by default one per core.
        job_bytes: typical size of what a job writes, by which a full disk is noticed early.
        progress: whether to show progress.

    Raises:
        InputError: with nothing changed, when `root` holds anything else, what it holds is damaged,
            or the disk is too full.
        RunFailed: when writing fails.
    """
    started = time.perf_counter()
    root = Path(root).expanduser().absolute()
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; it must be at least 1.", parameter="workers")
    record = json.loads(json.dumps(record))
    if (files := _complete(root, record)) is not None:
        return Made(root, files, False, time.perf_counter() - started)
    partial = root / _PARTIAL
    if not root.exists():  # otherwise another process may be at work in it
        _check_space(root, len(jobs) * job_bytes)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root, waiting=lambda: tell(f"waiting for another process that writes {root}")):
            # complete by now if another process held the lock and made the data
            if (files := _complete(root, record)) is not None:
                return Made(root, files, False, time.perf_counter() - started)
            there = _begin(partial, record)
            missing = {name: arguments for name, arguments in jobs.items() if name not in there}
            _check_space(root, len(missing) * job_bytes)
            _write(partial, missing, write, workers or len(os.sched_getaffinity(0)), progress)
            with _busy("digests of mock data", progress):
                files = _finish(root, partial, record)
    except (OSError, BrokenProcessPool) as error:
        raise RunFailed(
            f"Could not write data in {printable(root)}: {error}. Free some space, or give another "
            "folder; run it again to go on from there."
        ) from error
    return Made(root, files, True, time.perf_counter() - started)


def _busy(what: str, progress: bool) -> contextlib.AbstractContextManager[Any]:
    return busy(what) if progress else contextlib.nullcontext()


def is_made(root: Path) -> bool:
    """Return whether `make` has completed the folder `root`."""
    return _read(root / RECORD) is not None


def verify(root: Path | str) -> list[str]:
    """Read the mock data in `root` in full and return a line for each file that is not as made.

    A file may be missing, altered or extra; data may be incomplete.

    Raises:
        InputError: `root` holds no mock data with a record of its digests.
    """
    root = Path(root)
    if (root / _PARTIAL / RECORD).exists():
        return [f"incomplete: {root}: run it again to go on"]
    made = _read(root / RECORD)
    if made is None:
        what = "holds no data of this version" if root.exists() else "does not exist"
        raise InputError(f"{root} {what}. Make some in a new folder.", parameter="folder")
    return _differences(root, made["sha256"], list(_files(root)))


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) and "made" in content else None
    return None


def _complete(root: Path, record: dict[str, Any]) -> int | None:
    """Return the number of files of the mock data in `root`; None if they are yet to be made."""
    if not root.exists():
        return None
    if not root.is_dir():
        raise InputError(f"{root} is a file; give a folder.", parameter="out")
    begun = _read(root / _PARTIAL / RECORD)
    made = begun or _read(root / RECORD)
    if made is None:
        if all(entry.name == _PARTIAL for entry in root.iterdir()):
            return None
        raise InputError(
            f"{printable(root)} is not empty and holds no data of this version; nothing was "
            "changed. Give another folder.",
            parameter="out",
        )
    if made["made"] != record:
        raise InputError(
            f"{printable(root)} holds other data, {made['made']}, not {record}; nothing was "
            "changed. Give another folder, or move that one away.",
            parameter="out",
        )
    if begun:
        return None
    files, digests = _files(root), made["sha256"]
    changed = files.keys() != digests.keys() or sum(files.values()) != made["bytes"]
    look = changed or made["bytes"] <= _DIGEST_LIMIT
    if problems := _differences(root, digests, files) if look else []:
        raise InputError(
            f"{printable(root)} is damaged: {some(problems)}. Move it away and make it again.",
            parameter="out",
        )
    return len(files)


def _check_space(root: Path, needed: int) -> None:
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    available = shutil.disk_usage(existing).free
    if needed and needed + _SPARE_BYTES > available:
        raise InputError(
            f"Not enough disk space in {root}: {needed / 2**30:.1f} GiB needed, "
            f"{available / 2**30:.1f} GiB available. Free some, give another folder, or ask for "
            "less data.",
            parameter="out",
        )


def _begin(partial: Path, record: dict[str, Any]) -> set[str]:
    """Prepare the folder `partial` and return what an interrupted call has made in it."""
    if _read(partial / RECORD) is None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with atomic_write(partial / RECORD) as file:
            json.dump({"made": record}, file)
    for entry in partial.parent.iterdir():  # a call was killed while it moved the content up
        if entry != partial:
            entry.replace(partial / entry.name)
    there = set()
    for name, size in _files(partial).items():
        # A machine that lost its power may leave an empty file under a final name.
        if not size or is_temporary(name.rpartition("/")[2]):
            (partial / name).unlink()
        else:
            there.add(name)
    return there


def _finish(root: Path, partial: Path, record: dict[str, Any]) -> int:
    sizes = _files(partial)
    content = {
        "made": record,
        "files": len(sizes),
        "bytes": sum(sizes.values()),
        "sha256": dict(_digests(partial, sizes)),
    }
    with atomic_write(partial / RECORD) as file:
        json.dump(content, file, indent=1)
    for entry in sorted(partial.iterdir(), key=lambda entry: entry.name == RECORD):
        entry.replace(root / entry.name)
    partial.rmdir()
    return len(sizes)


def _files(root: Path) -> dict[str, int]:
    return {
        path.relative_to(root).as_posix(): path.stat().st_size
        for folder, _, names in os.walk(root)
        for path in (Path(folder, name) for name in names)
        if path != root / RECORD
    }


def _digests(root: Path, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    def digest(name: str) -> tuple[str, str]:
        with (root / name).open("rb") as file:
            return name, hashlib.file_digest(file, "sha256").hexdigest()

    ordered = sorted(names)
    with ThreadPoolExecutor() as pool:  # reading and hashing release the GIL
        for start in range(0, len(ordered), 1000):  # a million tasks at once would fill the memory
            yield from pool.map(digest, ordered[start : start + 1000])


def _differences(root: Path, digests: Mapping[str, str], names: Iterable[str]) -> list[str]:
    there = set(names)
    altered = (
        name for name, digest in _digests(root, there & digests.keys()) if digest != digests[name]
    )
    return [
        *(f"missing: {name}" for name in sorted(digests.keys() - there)),
        *(f"extra: {name}" for name in sorted(there - digests.keys())),
        *(f"altered: {name}" for name in altered),
    ]


def _write(
    folder: Path, jobs: Mapping[str, tuple[Any, ...]], write: Write, workers: int, progress: bool
) -> None:
    work = [(folder / name, arguments) for name, arguments in jobs.items()]
    chunks = [work[start : start + _CHUNK] for start in range(0, len(work), _CHUNK)]
    if len(chunks) <= 1:
        with _busy("making mock data", progress):
            _write_chunk(work, write)
        return
    with Progress(enabled=progress) as shown:
        done = 0

        def show(count: int) -> None:
            nonlocal done
            done += count
            shown.show("mock data", count=done, total=len(work), unit="files")

        show(0)
        if min(workers, len(chunks)) > 1:
            _in_processes(chunks, write, min(workers, len(chunks)), show)
        else:
            for chunk in chunks:
                show(_write_chunk(chunk, write))


def _write_chunk(chunk: Chunk, write: Write) -> int:
    for path, arguments in chunk:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, *arguments)
    return len(chunk)


def _in_processes(
    chunks: Sequence[Chunk], write: Write, workers: int, show: Callable[[int], None]
) -> None:
    """Do the chunks in worker processes and show the number of jobs of each that is done.

    However this ends, the workers have ended. Each file is atomic, so they may be terminated.
    """
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start_worker, (os.getpid(),))
    try:
        for future in as_completed([pool.submit(_write_chunk, chunk, write) for chunk in chunks]):
            show(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            if worker not in others:
                worker.terminate()
        raise
    finally:
        pool.shutdown()


def _start_worker(parent: int) -> None:
    """Prepare a worker: leave Ctrl-C to the parent, and end when the parent ends in any way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    if os.getppid() != parent:  # it ended while this process imported
        os._exit(1)
