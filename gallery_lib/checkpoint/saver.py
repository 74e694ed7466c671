"""When to save and when to end, the same on every rank, and the writing in the background.

Steps are counted alike everywhere. What one rank alone knows, the time and a notice to end, goes to
all with an all-reduce that is awaited at the end of the next step. So no step waits for it. Rank 0
gathers the ranks' own small states, copies the common one, and has a thread of low priority write
the copy.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.checkpoint import state
from gallery_lib.checkpoint.folders import Interval, newest_first, of_step, reason_of
from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.state import Parts
from gallery_lib.comm import process_group
from gallery_lib.console.exit_code import refusal
from gallery_lib.system.files import atomic_write

_NICENESS = 10


class Due(NamedTuple):
    """Whether to save a checkpoint at the end of a step, and whether to end the training then."""

    save: bool
    end: bool


class Saver:
    """Saver of one training's checkpoints. The constructor is a collective call.

    Args:
        folder: the folder of checkpoints.
        parts: what a checkpoint holds.
        interval: between two checkpoints; None: none is saved.
        keep: number of checkpoints to keep.
        say: tells a line to whoever watches the training.
        notice: what this process hears.
    """

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        interval: Interval | None,
        keep: int,
        say: Callable[[str], None],
        notice: Notice,
    ) -> None:
        self.folder, self._parts, self._interval, self._keep = folder, parts, interval, keep
        self._say, self._notice = say, notice
        self._alone = process_group.world_size() == 1
        self._group: Any = None
        if not self._alone and interval is not None:
            self._group = dist.new_group(backend="gloo")
        self._began = time.monotonic()
        self._flags: tuple[Tensor, Any] | None = None
        self._thread: threading.Thread | None = None
        self._saved_at = -1
        self.failure = ""
        """Why rank 0 could not write the latest checkpoint, or ""."""

    def due(self, step: int) -> Due:
        """Return what is to be done at the end of a step. Every rank calls it after each step."""
        if self._interval is None:
            return Due(False, False)
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
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._flags = values, work
        return agreed

    def save(self, step: int, common: dict[str, Any], of_rank: dict[str, Any]) -> None:
        """Copy the training's state, with `common` and `of_rank`, and write it in the background.

        Every rank calls it.
        """
        self._saved_at = step
        self.wait()
        own = state.copied({**self._parts.of_rank(), **of_rank})
        ranks = [own] * process_group.world_size()
        if not self._alone:
            first = process_group.rank() == 0
            dist.gather_object(own, ranks if first else None, dst=0, group=self._group)
        if process_group.rank() == 0:
            content = state.copied({**self._parts.state(), **common})
            content |= {"format": state.FORMAT, "step": step, "ranks": ranks}
            self._thread = threading.Thread(
                target=self._write, args=(step, content), name="checkpoint", daemon=True
            )
            self._thread.start()

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
        failure = process_group.from_rank_0(self.failure)
        how = f"without a new checkpoint ({failure})" if failure else "with a checkpoint"
        reason = self._notice.heard() or "another process's notice"
        return f"{reason}: ended after step {step} {how}"

    def _write(self, step: int, content: dict[str, Any]) -> None:
        """Write a checkpoint, and delete all but the newest; in the thread."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began, path, self.failure = time.perf_counter(), of_step(self.folder, step), ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(".*.tmp"):  # of a killed process
                left.unlink()
            with atomic_write(path, "wb", sync=True) as file:
                torch.save(content, file)
                file.flush()
                # Mapped, so quick. What holds more than data could not be read back.
                torch.load(file.name, map_location="cpu", weights_only=True, mmap=True)
            size = path.stat().st_size / 2**20
            for old in newest_first(self.folder)[self._keep :]:
                old.unlink()
        except Exception as error:
            self.failure = _in_words(error, self.folder)
            line = f"step {step} could not be saved, and the training goes on: {self.failure}"
        else:
            seconds = time.perf_counter() - began
            line = f"step {step}  {size:.1f} MiB  written in {seconds:.2f} s, in the background"
        self._say(f"checkpoint  {line}")


def _in_words(error: BaseException, folder: Path) -> str:
    """Return in one line why a checkpoint could not be written."""
    cause: BaseException | None = error
    while cause is not None:  # torch.save hides that a disk is full behind an error of its own
        if isinstance(cause, OSError) and cause.errno is not None:
            cause.filename = cause.filename or str(folder)
            return refusal(cause)
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {reason_of(error)}"
