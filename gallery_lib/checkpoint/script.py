"""Checkpoints of a training script, in two lines: `Checkpoint(…)` before the loop, `step()` in it.

It resumes where it is made, if its folder holds a checkpoint. The loop goes on where it was: the
loader's next pass leaves out what the interrupted one has had.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.folders import AUTO, interval_of
from gallery_lib.checkpoint.notice import Notice
from gallery_lib.checkpoint.saver import Saver
from gallery_lib.checkpoint.state import Parts, choose, graphs_made
from gallery_lib.comm import process_group
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
    """Checkpoints of a training, which goes on from the newest one. A collective call.

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

    Raises:
        InputError: the checkpoint is of another model or optimizer, or damaged, or another
            Checkpoint is open.

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
        if keep < 1:
            raise InputError(f"keep={keep} must be at least 1.", parameter="keep")
        self.folder = Path(folder).expanduser()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._parts = Parts(
            model, _listed(optimizer), _listed(scheduler), scaler, _followed(loader)
        )
        self.steps = 0
        """Number of steps done, those before a resume included."""
        self.resumed_from: Path | None = None
        """The checkpoint that this training goes on from, or None."""
        self._several_graphs, self._graphs = False, -1
        self._go_on(resume)
        self._ends, self._notice = contextlib.ExitStack(), Notice()
        self._ends.enter_context(self._notice.listening())
        self._saver = Saver(self.folder, self._parts, interval, keep, say, self._notice)
        # At its end Python would stop the thread in the middle of a write.
        self._finish = weakref.finalize(self, self._saver.finish)
        _open = weakref.ref(self)

    @property
    def epoch(self) -> int:
        """Return the number of whole passes through the loader: where a loop over epochs begins."""
        return getattr(self._parts.loader, "passes", None) or 0

    def step(self) -> None:
        """Count a step, and save a checkpoint where one is due. Every rank calls it after a step.

        Raises:
            SystemExit: with code 75, after a signal has asked the script to end.
        """
        self.steps += 1
        graphs = graphs_made()  # those of the first step are those of a process that goes on, too
        self._several_graphs |= 0 <= self._graphs < graphs
        self._graphs = graphs
        save, end = self._saver.due(self.steps)
        if save:
            self.save()
        if end:
            say(f"checkpoint  {self._saver.end(self.steps)}. Run it again.")
            if process_group.world_size() > 1:
                process_group.all_ranks(None)  # the first rank that ends has the others ended
            raise SystemExit(GO_ON_LATER)

    def save(self) -> None:
        """Save a checkpoint now, in the background. Every rank calls it, between two steps."""
        self._saver.save(self.steps, {"several_graphs": self._several_graphs}, {})

    def close(self) -> None:
        """Wait until the last checkpoint is whole, and let signals end the script as before."""
        self._closed = True
        self._finish()
        self._ends.close()

    def _go_on(self, resume: str | Path | None) -> None:
        there = folders.newest_first(self.folder)
        if resume is None and there:
            raise InputError(
                f"{self.folder} holds checkpoints. resume='auto' goes on from the newest; a new "
                "training needs a new folder.",
                parameter="folder",
            )
        if resume is None:
            return
        saved = choose(AUTO if there else resume, self.folder)
        if saved is not None:
            said = self._parts.load(saved)
            self.steps, self.resumed_from = saved.step, saved.path
            self._several_graphs = bool(saved.content.get("several_graphs"))
            said += [_SEVERAL_GRAPHS] if self._several_graphs else []
            for line in (f"going on from {saved.path}, step {self.steps}", *said):
                say(f"checkpoint  {line}")


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
