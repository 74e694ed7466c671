"""When to save and when to end: the same on every rank, without a step that waits for it.

Steps are counted alike everywhere. What one rank alone knows, the time and a notice to end, goes to
all with an all-reduce that is awaited at the end of the next step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from gallery_lib.checkpoint import folders, manifest, plain_weights, training_state
from gallery_lib.checkpoint.choice import COMMON_FILE
from gallery_lib.checkpoint.direct_files import DirectFiles
from gallery_lib.checkpoint.manifest import FileFacts, Manifest
from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.staging import Staging, copied
from gallery_lib.checkpoint.training_state import MODEL, OPTIMIZER, TrainingState, unnamed
from gallery_lib.comm import process_group
from gallery_lib.config.intervals import Interval
from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import InputError


class Due(NamedTuple):
    """Whether to save a checkpoint at the end of a step, and whether to end the training then."""

    save: bool
    end: bool


class Saver:
    """Saver of one training's checkpoints. The constructor is a collective call.

    Args:
        folder: the folder of checkpoints.
        interval: between two checkpoints.
        keep: number of whole checkpoints to keep.
        say: tells a line to whoever watches the training.
        notice: what this process hears.
    """

    def __init__(
        self,
        folder: Path,
        interval: Interval,
        keep: int,
        say: Callable[[str], None],
        notice: Notice,
    ) -> None:
        self._interval, self._say, self._notice = interval, say, notice
        self._writer = Writer(folder, keep, self._ended)
        self._alone = process_group.world_size() == 1
        self._group: Any = None if self._alone else dist.new_group(backend="gloo")
        self._began = time.monotonic()
        self._flags: tuple[torch.Tensor, Any] | None = None
        self.saved_at = -1
        """The step of the latest checkpoint, whole or not; -1 before one."""
        self._told_of_waiting = self._told_of_weights = False
        self.last: Outcome | None = None
        """The newest checkpoint that is whole, of those this process has saved; None before."""
        self.failure: str = ""
        """Why the latest attempt failed; "" where it did not."""
        self.outcomes: list[Outcome] = []

    def due(self, step: int) -> Due:
        """Return what is to be done at the end of a step. Every rank calls it after each step."""
        timed = self._interval.seconds
        over = timed is not None and time.monotonic() - self._began >= timed
        end, by_time = self._agreed(bool(self._notice.heard()), over)
        by_steps = self._interval.steps is not None and step % self._interval.steps == 0
        if by_time or by_steps:
            self._began = time.monotonic()
        return Due((by_time or by_steps or end) and step != self.saved_at, end)

    def _agreed(self, *own: bool) -> tuple[bool, ...]:
        """Return which of the flags any rank had at the end of the step before."""
        if self._alone:
            return own
        flags, self._flags = self._flags, None
        agreed = tuple(False for _ in own)
        if flags is not None:
            values, work = flags
            work.wait()
            agreed = tuple(map(bool, values.tolist()))
        # What was agreed on now is not to be done again.
        values = torch.tensor([flag and not old for flag, old in zip(own, agreed, strict=True)])
        values = values.to(torch.int32)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._flags = values, work
        return agreed

    def save(self, step: int, state: TrainingState) -> None:
        """Copy the state and write it in the background. Every rank calls it."""
        self.saved_at = step
        if (name := unnamed(state.common["model"])) and not self._told_of_weights:
            self._told_of_weights = True
            self._say(
                f"checkpoint  without a weights.safetensors, a format that cannot hold {name}; all "
                "else is saved"
            )
        self._writer.save(step, state)
        waited = self._writer.waited_seconds
        if waited > 0.5 and not self._told_of_waiting:
            self._told_of_waiting = True
            self._say(
                f"checkpoint  step {step} waited {waited:.1f} s for the checkpoint before it to be "
                "written: a longer checkpoint_every does not wait"
            )

    @property
    def copy_seconds(self) -> float:
        """Return the seconds by which the latest copy has delayed its step."""
        return self._writer.copy_seconds

    def finish(self) -> None:
        """Wait until the checkpoint under way is whole, or has failed."""
        if self._flags is not None:
            self._flags[1].wait()
            self._flags = None
        self._writer.wait()

    def _ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.failure = outcome.failure
        if outcome.failure:
            self._say(
                f"checkpoint  step {outcome.step} could not be saved, and the training goes on: "
                f"{outcome.failure}"
            )
            return
        self.last = outcome
        self._say(
            f"checkpoint  step {outcome.step}  {outcome.bytes / 2**20:.1f} MiB  "
            f"written in {outcome.seconds:.2f} s, in the background"
        )


# --------------------------------------------------------------------------------------------------
# Write checkpoints in the background: `Writer.save` returns when the state has been copied.
#
# `torch.distributed.checkpoint` writes the tensors, each by one rank. The thread has a process
# group of its own, so that its messages do not mix with those of the training.


_NICENESS = 10
_MOST_THREADS = 4
WEIGHTS_FILE = "weights.safetensors"


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's own part of a checkpoint."""
    return f"rank-{rank:05d}.pt"


@dataclass(frozen=True)
class Outcome:
    """End of one attempt to save: the seconds that it took, or why it failed."""

    step: int
    seconds: float
    bytes: int = 0
    failure: str = ""
    path: Path | None = None


class Writer:
    """Writer of a training's checkpoints. The constructor is a collective call.

    Args:
        folder: the folder of checkpoints.
        keep: number of whole checkpoints to keep.
        ended: called with each outcome, in the thread that writes.
    """

    def __init__(self, folder: Path, keep: int, ended: Callable[[Outcome], None]) -> None:
        self.folder, self._keep, self._ended = folder, keep, ended
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._alone = process_group.world_size() == 1
        self._group: Any = None if self._alone else dist.new_group(backend="gloo")
        self.copy_seconds = self.waited_seconds = 0.0
        """Of the last checkpoint: its copy, and the wait of its step for the one before."""

    def save(self, step: int, state: TrainingState) -> None:
        """Copy the state, and begin to write it. Every rank has to call it."""
        began = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        own = {name: state.tensors[name] for name in self._own_part(state.tensors)}
        staged = self._staging.copy(own)
        common = copied(state.common) if process_group.rank() == 0 else {}
        rest = copied(state.of_rank)
        self.waited_seconds = waited - began
        self.copy_seconds = time.perf_counter() - waited
        self._thread = threading.Thread(
            target=self._write_or_tell,
            args=(step, staged, common, rest, state),
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is whole, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write_or_tell(self, step: int, *state: Any) -> None:
        """Write in the thread; that other ranks are gone is a failure like any other."""
        began = time.perf_counter()
        _give_way()
        try:
            self._write(step, *state)
        except Exception as error:
            failure = _in_words(error, self.folder)
            self._ended(Outcome(step, time.perf_counter() - began, failure=failure))

    def _own_part(self, tensors: dict[str, Tensor]) -> list[str]:
        """Return the names of the tensors that this rank writes.

        Rank 0 has all weights, which it also writes as safetensors. The rest goes to whoever has
        the fewest bytes. All ranks come to the same division.
        """
        loads = [0] * process_group.world_size()
        parts: list[list[str]] = [[] for _ in loads]
        by_size = sorted(tensors, key=lambda name: (-tensors[name].nbytes, name))
        for name in sorted(by_size, key=lambda name: not name.startswith(MODEL)):
            rank = 0 if name.startswith(MODEL) else loads.index(min(loads))
            loads[rank] += tensors[name].nbytes
            parts[rank].append(name)
        return parts[process_group.rank()]

    def _write(
        self,
        step: int,
        tensors: dict[str, Tensor],
        common: dict[str, Any],
        of_rank: dict[str, Any],
        state: TrainingState,
    ) -> None:
        began = time.perf_counter()
        rank = process_group.rank()
        unfinished = folders.unfinished(self.folder, step)
        files: dict[str, FileFacts] = {}

        def begin() -> None:
            if rank == 0:
                folders.begin(self.folder, step)

        def write() -> None:
            written = self._write_tensors(unfinished, tensors)
            written |= self._write_rest(unfinished, tensors, common, of_rank)
            mine = [f"__{rank}_*", rank_file(rank)]
            if rank == 0:
                _copy(unfinished, state.copies)
                mine += [".metadata", COMMON_FILE, WEIGHTS_FILE, *state.copies]
            for pattern in mine:
                for path in unfinished.glob(pattern):
                    files[path.name] = written.get(path.name) or manifest.facts_of(path)

        def finish() -> None:
            if rank == 0:
                self._check_present(unfinished, everything)
                size = process_group.world_size()
                manifest.write(unfinished, Manifest(step, size, everything, state.facts))
                folders.finish(self.folder, step, self._keep)

        failure = self._together(begin) or self._together(write)
        everything: dict[str, FileFacts] = {}
        if not failure:
            for part in self._all_ranks(files):
                everything |= part
            failure = self._together(finish)
        if failure and rank == 0:
            folders.abandon(self.folder, step)
        seconds = time.perf_counter() - began
        size = sum(facts.bytes for facts in everything.values())
        path = None if failure else folders.of_step(self.folder, step)
        self._ended(Outcome(step, seconds, size, failure, path))

    def _write_tensors(self, folder: Path, tensors: dict[str, Tensor]) -> dict[str, FileFacts]:
        """Write this rank's tensors; return length and digest of its files, by name."""
        writer = dcp.FileSystemWriter(
            str(folder),
            sync_files=False,  # the files synchronise themselves
            # A step's threads wait for the slowest: it costs less to take a little from each core.
            thread_count=min(_MOST_THREADS, torch.get_num_threads()),
        )
        writer.fs = files = DirectFiles()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(
                dict(tensors),
                storage_writer=writer,
                process_group=self._group,
                no_dist=self._alone,
            )
        return files.facts

    def _write_rest(
        self,
        folder: Path,
        tensors: dict[str, Tensor],
        common: dict[str, Any],
        of_rank: dict[str, Any],
    ) -> dict[str, FileFacts]:
        """Write plain values and weights; return length and digest of files, as far as known."""
        rank = process_group.rank()
        _save(of_rank, folder / rank_file(rank))
        if rank != 0:
            return {}
        _save(common, folder / COMMON_FILE)
        if training_state.unnamed(common["model"]):
            return {}
        weights = {
            name.removeprefix(MODEL): tensor.contiguous()
            for name, tensor in (tensors | common["model"]).items()
            if isinstance(tensor, Tensor) and not name.startswith(OPTIMIZER)
        }
        return {WEIGHTS_FILE: plain_weights.write(folder / WEIGHTS_FILE, weights)}

    def _check_present(self, folder: Path, files: dict[str, FileFacts]) -> None:
        missing = [name for name in files if not (folder / name).exists()]
        if missing:
            raise OSError(
                f"{missing[0]} of another host is not in {self.folder}: the folder has to be on a "
                "file system that all hosts share"
            )

    def _all_ranks(self, value: Any) -> list[Any]:
        if self._alone:
            return [value]
        values: list[Any] = [None] * process_group.world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _together(self, part: Callable[[], None]) -> str:
        """Run a part of the work on every rank; return the first failure on any, or ""."""
        failure = ""
        try:
            part()
        except (Exception, CheckpointException) as error:  # torch's is a BaseException
            failure = _in_words(error, self.folder)
        return next(filter(None, self._all_ranks(failure)), "")


def _give_way() -> None:
    """Have this thread take what processor time the training leaves, where a thread can do that."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _save(value: dict[str, Any], path: Path) -> None:
    """Write plain values, and read them back: a schedule may have put in anything meanwhile.

    Raises:
        InputError: they cannot be read back.
    """
    from gallery_lib.checkpoint import reading

    torch.save(value, path)
    _synchronize(path)
    try:
        reading.plain_state(path)
    except manifest.Unusable:
        training_state.check_plain(value)
        raise


def _copy(folder: Path, files: dict[str, tuple[Path, int]]) -> None:
    """Copy the beginnings of files that grow meanwhile."""
    for name, (path, length) in files.items():
        with path.open("rb") as source, (folder / name).open("wb") as copy:
            copy.write(source.read(length))
            copy.flush()
            os.fsync(copy.fileno())


def _synchronize(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _in_words(error: BaseException, folder: Path) -> str:
    """Return in one line why a checkpoint could not be written."""
    if isinstance(error, CheckpointException) and error.failures:
        inner = next(iter(error.failures.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    cause: BaseException | None = error
    while cause is not None:  # torch.save hides that a disk is full behind an error of its own
        if isinstance(cause, OSError) and cause.errno is not None:
            cause.filename = cause.filename or str(folder)
            return refusal(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, InputError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
