"""Checkpoints of a training script, in two lines: `Checkpoint(…)` before the loop, `step()` in it.

It resumes where it is made, if its folder holds a checkpoint. The loop goes on where it was: the
loader's next pass leaves out what the interrupted one has had.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.folders import AUTO
from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.saver import Saver
from gallery_lib.checkpoint.state import Parts, check_plain, choose
from gallery_lib.comm import process_group
from gallery_lib.compiler import notices
from gallery_lib.config.intervals import interval_of
from gallery_lib.console.exit_code import refusal
from gallery_lib.data.loading.progress import follow
from gallery_lib.errors import InputError
from gallery_lib.system.processes import GO_ON_LATER, tell

_SEVERAL_GRAPHS = (
    "the compiler has made graphs for batches of several shapes. A new process sees another shape "
    "first, so losses may differ in the last bit. torch._dynamo.maybe_mark_dynamic makes one graph "
    "serve all shapes"
)

_open: weakref.ref[Checkpoint] | None = None
"""The Checkpoint that is open in this process."""


class Checkpoint:
    """Checkpoints of a training, which goes on from the newest whole one. A collective call.

    Make it after `accelerate()`, `DistributedDataParallel` and the like, right before the loop.
    SIGTERM and SIGUSR1, by which schedulers announce the end, then save a checkpoint at the end of
    the step and end the script with exit code 75 (EX_TEMPFAIL: go on later).

    One Checkpoint holds all of a training. For a generator and its critic, say, `model` is an
    `nn.ModuleDict` of both, and `optimizer` a list. A second one is refused while one is open: at
    a signal the two would end at different steps.

    Args:
        folder: the folder of this training's checkpoints. Several hosts share it.
        model: the module that is trained, also inside DistributedDataParallel or torch.compile.
        optimizer: its optimizer, or a list of several.
        scheduler: a learning-rate scheduler, or anything else with a state dict; or a list.
        scaler: a GradScaler.
        loader: the loader of the training data: a DataLoader, accelerate()'s, or one with a state
            dict of its own.
        every: interval, in steps (`20`) or as a time (`"10min"`).
        keep: number of checkpoints to keep.
        resume: `auto`, or a checkpoint to start from where the folder holds none; None: start anew.
        exit_on_notice: whether a signal ends the script. Otherwise `notice` tells of it.

    Raises:
        InputError: the checkpoint is of another model or optimizer, is damaged, the folder cannot
            be written to, or another Checkpoint is open.

    Example:
        >>> import torch
        >>> from gallery_lib.checkpoint import Checkpoint
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loader = torch.utils.data.DataLoader(torch.ones(32, 4), batch_size=8, shuffle=True)
        >>> checkpoint = Checkpoint(
        ...     "checkpoints", model=model, optimizer=optimizer, loader=loader, every=2
        ... )
        >>> for epoch in range(checkpoint.epoch, 3):
        ...     for batch in loader:
        ...         optimizer.zero_grad()
        ...         model(batch).mean().backward()
        ...         optimizer.step()
        ...         checkpoint.step()
        >>> checkpoint.close()
        >>> checkpoint.steps
        12
    """

    folder: Path
    _closed = False

    def __init__(
        self,
        folder: Path | str,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        loader: Any = None,
        every: str | int,
        keep: int = 2,
        resume: str | Path | None = AUTO,
        exit_on_notice: bool = True,
    ) -> None:
        global _open
        process_group.ensure_initialized()
        interval = interval_of(every, "every")
        if _open is not None and (other := _open()) is not None and not other._closed:
            raise InputError(
                f"a Checkpoint is open already, in {other.folder}. Give it all models and "
                "optimizers of the training (model=torch.nn.ModuleDict({...}), optimizer=[...]), "
                "or close() it first.",
                parameter="Checkpoint",
            )
        if not isinstance(keep, int) or keep < 1:
            raise InputError(f"keep={keep!r} must be a whole number from 1.", parameter="keep")
        self.folder = Path(folder).expanduser()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied", str(self.folder))
        except OSError as error:
            raise InputError(
                f"folder={self.folder} cannot be used. {refusal(error)}.", parameter="folder"
            ) from None
        self._parts = Parts(
            model, _listed(optimizer), _listed(scheduler), scaler, _followed(loader)
        )
        self._exit_on_notice = exit_on_notice
        self.steps = 0
        """Number of steps done, those before a resume included."""
        self.resumed_from: Path | None = None
        """The checkpoint that this training goes on from, or None."""
        self._several_graphs, self._watching = False, False
        self._go_on(None if resume is None else str(resume))
        state = self._parts.state()
        check_plain({**state.common, **state.of_rank})
        self._ends, self._notice = contextlib.ExitStack(), Notice()
        self._ends.enter_context(self._notice.listening())
        self._saver = Saver(self.folder, interval, keep, say, self._notice)
        # At its end Python would stop the thread in the middle of a write.
        self._finish = weakref.finalize(self, self._saver.finish)
        _open = weakref.ref(self)

    @property
    def epoch(self) -> int:
        """Return the number of whole passes through the loader: where a loop over epochs begins."""
        return getattr(self._parts.loader, "passes", None) or 0

    @property
    def notice(self) -> str:
        """Return the name of the signal that asks the script to end, or "" before one came."""
        return self._notice.heard()

    def step(self) -> None:
        """Count a step, and save a checkpoint where one is due. Every rank calls it after a step.

        Raises:
            SystemExit: with code 75, after a signal has asked the script to end.
        """
        self.steps += 1
        if not self._watching:  # the first step's graphs are those of a process that goes on, too
            self._watching = True
            self._watch_compiler()
        save, end = self._saver.due(self.steps)
        if save:
            self.save()
        if end and self._exit_on_notice:
            say(f"checkpoint  {self._saver.end(self.steps)}. Run it again.")
            if process_group.world_size() > 1:
                process_group.all_ranks(None)  # the first rank that ends has the others ended
            raise SystemExit(GO_ON_LATER)

    def save(self) -> None:
        """Save a checkpoint now, in the background. Every rank calls it, between two steps."""
        state = self._parts.state(steps=self.steps, several_graphs=self._several_graphs)
        state.facts = {"torch": str(torch.__version__), "script": Path(sys.argv[0]).name}
        self._saver.save(self.steps, state)

    def close(self) -> None:
        """Wait until the last checkpoint is whole, and let signals end the script as before."""
        self._closed = True
        self._finish()
        self._ends.close()

    def _go_on(self, resume: str | None) -> None:
        if resume is None:
            if folders.newest_first(self.folder):
                raise InputError(
                    f"{self.folder} holds checkpoints. resume='auto' goes on from the newest; for "
                    "a new training name a new folder.",
                    parameter="folder",
                )
            return
        saved = choose(AUTO, self.folder)
        if saved is None and resume != AUTO:
            saved = choose(resume, None)
        if saved is None:
            return
        self._parts.check(saved)
        said = self._parts.load(saved)
        self.steps, self.resumed_from = saved.manifest.step, saved.path
        say(f"checkpoint  going on from {saved.path}, step {self.steps}")
        self._several_graphs = bool(saved.common.get("several_graphs"))
        for line in (*saved.refused, *said, *([_SEVERAL_GRAPHS] if self._several_graphs else [])):
            say(f"checkpoint  {line}")

    def _watch_compiler(self) -> None:
        """Note from now on that the training is compiled again."""
        if "torch._dynamo" not in sys.modules:  # nothing is compiled
            return
        reference = weakref.ref(self)

        def note() -> None:
            alive = reference()
            if alive is not None and torch.is_grad_enabled():
                alive._several_graphs |= alive._parts.plain().training

        self._ends.enter_context(notices.observed(note, lambda: None, lambda: None))


def say(line: str) -> None:
    """Print a line on rank 0's standard error."""
    if process_group.rank() == 0:
        tell(line)


def _listed(parts: Any) -> list[Any]:
    return [] if parts is None else list(parts) if isinstance(parts, list | tuple) else [parts]


def _followed(loader: Any) -> Any:
    """Return what knows a loader's position in its data, or refuse the loader."""
    if loader is None or hasattr(loader, "load_state_dict"):
        return loader
    if isinstance(loader, DataLoader):
        return follow(loader)
    raise InputError(
        f"loader is a {type(loader).__name__}, whose position in the data nobody knows: give a "
        "DataLoader, what accelerate() returned, or a loader with state_dict().",
        parameter="loader",
    )
