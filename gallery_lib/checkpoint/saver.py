"""When to save and when to end, the same on every rank, and the writing in the background.

Steps are counted alike everywhere. What one rank alone knows, the time and a notice to end, goes to
all with an all-reduce that is awaited at the end of the next step. So no step waits for it. A save
returns when the state has been copied; a thread of low priority writes the copy. The thread has a
process group of its own, so that its messages do not mix with those of the training.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.folders import FileFacts, Manifest
from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.state import (
    COMMON_FILE,
    OPTIMIZER_FILE,
    RANK_FILE,
    WEIGHTS_FILE,
    TrainingState,
    copied,
    write_plain,
)
from gallery_lib.comm import process_group
from gallery_lib.config.intervals import Interval
from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import InputError

_NICENESS = 10


class Due(NamedTuple):
    """Whether to save a checkpoint at the end of a step, and whether to end the training then."""

    save: bool
    end: bool


@dataclass(frozen=True)
class Outcome:
    """End of one attempt to save: the seconds that it took, or why it failed."""

    step: int
    seconds: float
    bytes: int = 0
    failure: str = ""


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
        self.folder, self._interval, self._keep = folder, interval, keep
        self._say, self._notice = say, notice
        self._alone = process_group.world_size() == 1
        groups: list[Any] = [
            None if self._alone else dist.new_group(backend="gloo") for _ in range(2)
        ]
        self._step_group, self._thread_group = groups
        self._began = time.monotonic()
        self._flags: tuple[Tensor, Any] | None = None
        self._weights: dict[str, Tensor] = {}
        self._optimizers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        self._saved_at = -1
        self.copy_seconds = 0.0
        """By which the latest copy has delayed its step."""
        self.outcome: Outcome | None = None
        """Of the latest attempt that has come to its end; None before the first."""

    def due(self, step: int) -> Due:
        """Return what is to be done at the end of a step. Every rank calls it after each step."""
        timed = self._interval.seconds
        over = timed is not None and time.monotonic() - self._began >= timed
        end, by_time = self._agreed(bool(self._notice.heard()), over)
        by_steps = self._interval.steps is not None and step % self._interval.steps == 0
        if by_time or by_steps:
            self._began = time.monotonic()
        return Due((by_time or by_steps or end) and step != self._saved_at, end)

    def _agreed(self, *own: bool) -> tuple[bool, ...]:
        """Return which of the flags any rank had at the end of the step before."""
        if self._alone:
            return own
        agreed = tuple(False for _ in own)
        if self._flags is not None:
            values, work = self._flags
            work.wait()
            agreed = tuple(map(bool, values.tolist()))
        # What was agreed on now is not to be done again.
        values = torch.tensor([flag and not old for flag, old in zip(own, agreed, strict=True)])
        values = values.to(torch.int32)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._step_group, async_op=True)
        self._flags = values, work
        return agreed

    def save(self, step: int, state: TrainingState) -> None:
        """Copy the state and write it in the background. Every rank calls it."""
        self._saved_at = step
        began = time.perf_counter()
        self.wait()
        if (waited := time.perf_counter() - began) > 0.5:
            self._say_once(
                f"step {step} waited {waited:.1f} s for the checkpoint before it to be written: a "
                "longer checkpoint_every does not wait",
                "waited",
            )
        for name, value in state.common["model"].items():
            if isinstance(value, Tensor):
                self._say_once(
                    f"{WEIGHTS_FILE} is without {name} ({value.dtype}, {value.layout}), which its "
                    f"format cannot hold; {COMMON_FILE} has it",
                    "odd weights",
                )
        began = time.perf_counter()
        rank, size = process_group.rank(), process_group.world_size()
        # Rank 0 has all weights. The states go round, the largest first, the same on all ranks.
        order = sorted(state.optimizers, key=lambda n: (-state.optimizers[n].nbytes, n))
        own = {name: state.optimizers[name] for name in order[(rank - 1) % size :: size]}
        self._weights = _copies(state.weights if rank == 0 else {}, self._weights)
        self._optimizers = _copies(own, self._optimizers)
        common = copied(state.common) if rank == 0 else {}
        rest = (copied(state.of_rank), state.facts, state.copies)
        staged = TrainingState(self._weights, self._optimizers, common, *rest)
        self.copy_seconds = time.perf_counter() - began
        self._thread = threading.Thread(
            target=self._write_or_tell, args=(step, staged), name="checkpoint", daemon=True
        )
        self._thread.start()

    def _say_once(self, line: str, kind: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._say(f"checkpoint  {line}")

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is whole, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def finish(self) -> None:
        """Wait until the checkpoint under way is whole, at the end of the training."""
        if self._flags is not None:
            self._flags[1].wait()
            self._flags = None
        self.wait()

    def end(self, step: int) -> str:
        """Finish a training that was told to end; return by what, and whether it was saved."""
        self.finish()
        failure = self.outcome.failure if self.outcome else ""
        how = f"without a new checkpoint ({failure})" if failure else "with a checkpoint"
        reason = self._notice.heard() or "another process's notice"
        return f"{reason}: ended after step {step} {how}"

    # ----------------------------------------------------------------------------------------------
    # In the thread.

    def _write_or_tell(self, step: int, state: TrainingState) -> None:
        began, size = time.perf_counter(), 0
        with contextlib.suppress(OSError):
            if sys.platform == "linux":
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            failure, size = self._write(step, state)
        except Exception as error:  # other ranks are gone
            failure = _in_words(error, self.folder)
        seconds = time.perf_counter() - began
        self.outcome = Outcome(step, seconds, size, failure)
        self._say(
            f"checkpoint  step {step} could not be saved, and the training goes on: {failure}"
            if failure
            else f"checkpoint  step {step}  {size / 2**20:.1f} MiB  written in {seconds:.2f} s, in "
            "the background"
        )

    def _write(self, step: int, state: TrainingState) -> tuple[str, int]:
        """Write a checkpoint with all ranks; return why it failed or "", and its bytes."""
        first = process_group.rank() == 0
        folder = folders.unfinished(self.folder, step)
        files: dict[str, FileFacts] = {}
        everything: dict[str, FileFacts] = {}

        def write() -> None:
            for path in _write_files(folder, state):
                files[path.name] = folders.facts_of(path)

        def finish() -> None:
            if missing := [name for name in everything if not (folder / name).exists()]:
                raise OSError(
                    f"{missing[0]} of another host is not in {self.folder}: the folder has to be "
                    "on a file system that all hosts share"
                )
            size = process_group.world_size()
            folders.finish(self.folder, Manifest(step, size, everything, state.facts), self._keep)

        failure = self._together(lambda: folders.begin(self.folder, step), on_this_rank=first)
        failure = failure or self._together(write)
        if not failure:
            for part in self._all_ranks(files):
                everything |= part
            failure = self._together(finish, on_this_rank=first)
        if failure and first:
            shutil.rmtree(folder, ignore_errors=True)
        return failure, sum(facts.bytes for facts in everything.values())

    def _all_ranks(self, value: Any) -> list[Any]:
        if self._alone:
            return [value]
        values: list[Any] = [None] * process_group.world_size()
        dist.all_gather_object(values, value, group=self._thread_group)
        return values

    def _together(self, part: Callable[[], None], *, on_this_rank: bool = True) -> str:
        """Run a part of the work; return the first failure on any rank, or ""."""
        failure = ""
        try:
            if on_this_rank:
                part()
        except Exception as error:
            failure = _in_words(error, self.folder)
        return next(filter(None, self._all_ranks(failure)), "")


def _copies(tensors: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the host, which stay as they are until the next checkpoint.

    The memory of those `before` is used again: first-touch page faults would cost as much as the
    copy each time.
    """
    copies = {}
    for name, tensor in tensors.items():
        copy = before.get(name)
        if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name] = copy.copy_(tensor.detach(), non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    return copies


def _write_files(folder: Path, state: TrainingState) -> list[Path]:
    """Write this rank's files of a checkpoint; return their paths."""
    rank = process_group.rank()
    plain = {RANK_FILE.format(rank): state.of_rank}
    tensors = {OPTIMIZER_FILE.format(rank): state.optimizers}
    if rank == 0:
        plain[COMMON_FILE], tensors[WEIGHTS_FILE] = state.common, state.weights
    for name, values in plain.items():
        write_plain(folder / name, values)
    for name, weights in tensors.items():
        safetensors.torch.save_file(weights, folder / name, metadata={"format": "pt"})
        folders.synchronize(folder / name)
    copies = state.copies if rank == 0 else {}
    for name, (path, length) in copies.items():  # files that grow meanwhile
        with path.open("rb") as source:
            (folder / name).write_bytes(source.read(length))
        folders.synchronize(folder / name)
    return [folder / name for name in (*plain, *tensors, *copies)]


def _in_words(error: BaseException, folder: Path) -> str:
    """Return in one line why a checkpoint could not be written."""
    cause: BaseException | None = error
    while cause is not None:  # torch.save hides that a disk is full behind an error of its own
        if isinstance(cause, OSError) and cause.errno is not None:
            cause.filename = cause.filename or str(folder)
            return refusal(cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, InputError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
