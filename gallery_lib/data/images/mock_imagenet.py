"""Write mock ImageNet to disk, for measuring and testing without the real data.

`generate()` writes JPEG files in ImageNet's own layout with several processes:
ROOT/train/nXXXXXXXX/*.JPEG and ROOT/val/nXXXXXXXX/*.JPEG. Each file appears by an atomic rename,
then its line in the manifest follows. So the work may be interrupted anywhere: the next call
removes leftovers and makes only what is missing. mock_render.py draws the images, and
mock_manifest.py keeps the record on disk. `generate()` never overwrites a folder that holds
anything else.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from gallery_lib.console.progress import Progress
from gallery_lib.data.images import mock_manifest as manifest
from gallery_lib.data.images.mock_manifest import Entry, verify
from gallery_lib.data.images.mock_render import SPLITS, MockSpec, encode, render
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.files import atomic_write, is_temporary, locked

__all__ = ["PRESETS", "Generated", "MockSpec", "generate", "render", "verify"]

PRESETS = {
    "small": MockSpec(classes=10, train_per_class=64, val_per_class=20),
    "imagenet-sized": MockSpec(classes=1000, train_per_class=1300, val_per_class=50),
}

# on disk, with the last block half empty on average, and with the line in the manifest
_MEAN_FILE_BYTES = 116 * 1024
_SPARE_BYTES = 16 * 1024 * 1024
_CHUNK = 16  # images per job: short enough that Ctrl-C is answered at once
_LAST_CHUNK_SECONDS = 3.0
"""Time that workers get after an interrupt, also those that are still starting."""
# up to this many images, sizes are also checked in a folder that looks complete
_SIZE_CHECK_LIMIT = 100_000

Job = tuple[str, int]  # split, index


@dataclass(frozen=True)
class Generated:
    """Result of `generate`: images in all, images that had to be made, and the time it took."""

    root: Path
    images: int
    made: int
    seconds: float


def generate(
    root: Path | str, spec: MockSpec, workers: int | None = None, progress: bool = True
) -> Generated:
    """Make or complete the mock data set `spec` in `root` with `workers` processes.

    The default is one process per core. Returns at once when the data set is complete. On
    KeyboardInterrupt all workers have ended before the exception leaves this call.

    Raises:
        InputError: when `root` holds something else or the disk is too full.
        RunFailed: when writing fails.
    """
    started = time.perf_counter()
    root = Path(root).expanduser().absolute()
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; it must be at least 1.", parameter="workers")
    workers = workers or len(os.sched_getaffinity(0))
    _refuse_other_content(root, spec)
    if not root.exists():
        _check_space(root, spec.total)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            _refuse_other_content(root, spec)
            entries, jobs = _remaining(root, spec)
            if jobs or not manifest.untouched(root, spec):
                _check_space(root, len(jobs))
                manifest.start(root, spec)
                for folder in manifest.folders(spec):
                    (root / folder).mkdir(parents=True, exist_ok=True)
                _make(root, spec, jobs, entries, workers, progress)
                manifest.finish(root, spec, entries)
    except (OSError, BrokenProcessPool) as error:
        raise RunFailed(
            f"Could not write the mock data set in {root}: {error}. Run it again to go on from "
            "there."
        ) from error
    return Generated(root, spec.total, len(jobs), time.perf_counter() - started)


def _refuse_other_content(root: Path, spec: MockSpec) -> None:
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is a file; give a folder.", parameter="out")
    if not root.exists() or all(is_temporary(entry.name) for entry in root.iterdir()):
        return
    old_spec = manifest.read_spec(root)
    if old_spec is None:
        raise InputError(
            f"{root} is not empty and holds no mock data set of this version; nothing was "
            "changed. Give an empty folder.",
            parameter="out",
        )
    if old_spec != spec:
        raise InputError(
            f"{root} holds another mock data set, {old_spec}, not {spec}; nothing was changed. "
            "Give another folder.",
            parameter="out",
        )


def _locked(root: Path) -> AbstractContextManager[None]:
    """Context: lock `root` for one generator; a second one waits, then finds the work done."""
    message = f"waiting for another process that writes {root}"
    return locked(root, waiting=lambda: print(message, file=sys.stderr, flush=True))


def _check_space(root: Path, images: int) -> None:
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    needed, available = images * _MEAN_FILE_BYTES + _SPARE_BYTES, shutil.disk_usage(existing).free
    if images and needed > available:
        raise InputError(
            f"Not enough disk space for {images} images in {root}: {needed / 2**30:.1f} GiB "
            f"needed, {available / 2**30:.1f} GiB available. Free some, give another folder, or "
            "ask for fewer images.",
            parameter="out",
        )


def _remaining(root: Path, spec: MockSpec) -> tuple[dict[str, Entry], list[Job]]:
    """Return the entries that are recorded and on disk, and the images still to be made.

    Removes leftovers of interrupted runs.
    """
    if spec.total > _SIZE_CHECK_LIMIT and manifest.untouched(root, spec):
        return {}, []
    sizes = manifest.sizes_on_disk(root, spec)
    for path in [path for path in sizes if is_temporary(path.rpartition("/")[2])]:
        (root / path).unlink(missing_ok=True)
    for leftover in root.glob(".manifest*.tmp"):
        leftover.unlink(missing_ok=True)
    recorded = manifest.read_entries(root)
    entries: dict[str, Entry] = {}
    jobs: list[Job] = []
    for split in SPLITS:
        for index, path in enumerate(manifest.paths(spec, split)):
            entry = recorded.get(path)
            if entry is not None and sizes.get(path) == entry.size_bytes:
                entries[path] = entry
            else:
                jobs.append((split, index))
    return entries, jobs


def _make(
    root: Path,
    spec: MockSpec,
    jobs: list[Job],
    entries: dict[str, Entry],
    workers: int,
    progress: bool,
) -> None:
    """Make the images of `jobs`, and record each in the manifest and in `entries`."""
    with (
        (root / manifest.LINES).open("a", encoding="utf-8") as lines,
        Progress(enabled=progress and bool(jobs)) as shown,
    ):
        done = 0
        shown.show("mock ImageNet", total=len(jobs), unit="images")
        # ends a line that an interrupted run may have left torn
        lines.write("\n" if jobs else "")

        def record(new_entries: list[Entry]) -> None:
            nonlocal done
            lines.write("".join(entry.line() for entry in new_entries))
            lines.flush()
            entries.update({entry.path: entry for entry in new_entries})
            done += len(new_entries)
            shown.show("mock ImageNet", count=done, total=len(jobs), unit="images")

        chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
        if min(workers, len(chunks)) > 1:
            _in_processes(root, spec, chunks, min(workers, len(chunks)), record)
        else:
            for job in jobs:
                record(_make_chunk(root, spec, [job]))


def _make_chunk(root: Path, spec: MockSpec, chunk: list[Job]) -> list[Entry]:
    entries = []
    for split, index in chunk:
        path = spec.path(split, index)
        data = encode(render(spec, split, index))
        with atomic_write(root / path, "wb") as file:
            file.write(data)
        entries.append(Entry(path, len(data), hashlib.sha256(data).hexdigest()))
    return entries


def _in_processes(
    root: Path,
    spec: MockSpec,
    chunks: list[list[Job]],
    workers: int,
    record: Callable[[list[Entry]], None],
) -> None:
    """Make `chunks` in worker processes and record the entries.

    However this call ends, the workers have ended and what they made is recorded. After an
    interrupt they get a few seconds to finish what they have begun.
    """
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    waiting = iter(chunks)
    running: set[Future[list[Entry]]] = set()
    try:
        while True:
            for chunk in itertools.islice(waiting, 2 * workers - len(running)):
                running.add(pool.submit(_make_chunk, root, spec, chunk))
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                record(future.result())
                running.remove(future)
    finally:
        pool.shutdown(wait=not running, cancel_futures=True)
        if wait(running, timeout=_LAST_CHUNK_SECONDS).not_done:
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.terminate()
        pool.shutdown(wait=True)
        for future in running:
            if not future.cancelled() and future.exception() is None:
                record(future.result())


def _start_worker() -> None:
    """Prepare a worker: leave Ctrl-C to the parent, and end when the parent ends in any way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            connection.wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
