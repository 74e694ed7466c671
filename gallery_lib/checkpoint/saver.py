"""When to save and when to end: the same on every rank, without a step that waits for it.

Steps are counted alike everywhere. What one rank alone knows, the time and a notice to end, goes to
all with an all-reduce that is awaited at the end of the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.training_state import TrainingState
from gallery_lib.checkpoint.writing import Outcome, Writer
from gallery_lib.comm import process_group
from gallery_lib.config.intervals import Interval


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
        self._saved_at = -1
        self._told_of_waiting = False
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
        return Due((by_time or by_steps or end) and step != self._saved_at, end)

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
        self._saved_at = step
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
