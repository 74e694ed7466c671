"""Checkpoints of a training, in two lines: `Checkpoint(…)` before the loop, `step()` in it.

It resumes where it is made, if its folder holds a checkpoint. The loop goes on where it was: the
loader's next pass leaves out what the interrupted one has had. The launcher's runs use the same
class (train/checkpoints.py).

When to save and when to end is the same on every rank. Steps are counted alike everywhere. What one
rank alone knows, the time and a notice to end, goes to all with an all-reduce that is awaited at
the end of the next step. So no step waits for it. Rank 0 gathers the ranks' own small states,
copies the common one, and has a thread of low priority write the copy.

Schedulers send SIGTERM or SIGUSR1, and a launcher writes a file, as a notice to end. A process that
listens goes on until it is at the end of a step. A second SIGTERM ends it at once, unless it
follows the first within seconds: a scheduler and torchrun may both send one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib.checkpoint import state
from gallery_lib.checkpoint.folders import AUTO, interval_of, newest_first, of_step, reason_of
from gallery_lib.checkpoint.state import Parts, choose, graphs_made
from gallery_lib.comm import process_group
from gallery_lib.console.exit_code import refusal
from gallery_lib.data.loading.progress import follow
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write
from gallery_lib.system.processes import GO_ON_LATER, tell

REQUEST_FILE = "end-requested-host{}"
"""File in a run's folder by which the launcher of a host hands on the notice to its own ranks.

It names the signal. Ranks of other hosts agree with these at the next step. A host that the run has
lost asks nobody.
"""
_ONE_NOTICE_SECONDS = 2.0
_NICENESS = 10
_SEVERAL_GRAPHS = (
    "the compiler has made graphs for batches of several shapes. A new process sees another shape "
    "first, so losses may differ in the last bit. torch._dynamo.maybe_mark_dynamic makes one graph "
    "serve all shapes"
)
_open: weakref.ref[Checkpoint] | None = None
"""The Checkpoint that is open in this process."""


class Notice:
    """What a process has heard so far: the name of the signal, or "".

    Args:
        folder: where `REQUEST_FILE` may appear; None: nobody writes one.
        host: number of this host in the run.
    """

    def __init__(self, folder: Path | None = None, host: int = 0) -> None:
        self._file = None if folder is None else folder / REQUEST_FILE.format(host)
        self._signal, self._since = "", 0.0

    def heard(self) -> str:
        """Return the name of the signal that came, here or at the launcher; "" before."""
        if not self._signal and self._file is not None:
            with contextlib.suppress(OSError):
                self._signal = self._file.read_text(encoding="utf-8").strip() or "SIGTERM"
        return self._signal

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Context: signals are noted instead of ending the process. Main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            if not self._signal:
                self._signal, self._since = signal.Signals(number).name, time.monotonic()
            elif number == signal.SIGTERM and time.monotonic() - self._since > _ONE_NOTICE_SECONDS:
                signal.signal(number, before[number])
                os.kill(os.getpid(), number)

        before: dict[int, Any] = {
            number: signal.signal(number, note) or signal.SIG_DFL
            for number in (signal.SIGTERM, signal.SIGUSR1)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def request_end(folder: Path, host: int, name: str) -> None:
    """Have the ranks that the run in `folder` has on `host` save a checkpoint and end the run."""
    (folder / REQUEST_FILE.format(host)).write_text(name, encoding="utf-8")


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
        every: interval, in steps (`20`) or as a time (`"10min"`); None: nothing is saved.
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
        every: str | int | None,
        keep: int = 2,
        resume: str | Path | None = AUTO,
    ) -> None:
        process_group.ensure_initialized()
        self._interval = None if every is None else interval_of(every, "every")
        if not isinstance(keep, int) or keep < 1:
            raise InputError(f"keep={keep!r} must be a whole number from 1.", parameter="keep")
        self.folder, self._keep = Path(folder).expanduser(), keep
        if self._interval is not None and process_group.rank() == 0:
            _check_folder(self.folder)
        self._parts = Parts(
            model, _listed(optimizer), _listed(scheduler), scaler, _followed(loader)
        )
        self.steps = 0
        """Number of steps done, those before a resume included."""
        self.resumed_from: Path | None = None
        """The checkpoint that this training goes on from, or None."""
        self.failure = ""
        """Why rank 0 could not write the latest checkpoint, or ""."""
        self._several_graphs, self._graphs = False, -1
        self._ends, self._notice = contextlib.ExitStack(), Notice()
        self._alone = process_group.world_size() == 1
        self._group: Any = None
        self._began, self._saved_at = time.monotonic(), -1
        self._flags: Tensor | None = None
        self._copy: dict[str, Any] | None = None
        self._under_way: dict[str, Callable[[], Any]] = {}
        """What is to be waited for, by name: the ranks' agreement and the writing."""
        self._begin(resume)
        if not self._alone and every is not None:
            self._group = dist.new_group(backend="gloo")
        # At its end Python would stop the thread in the middle of a write.
        weakref.finalize(self, _wait_for, self._under_way)

    def _begin(self, resume: str | Path | None) -> None:
        """Refuse a second one, go on from a checkpoint, and listen to signals from now on."""
        global _open
        if _open is not None and (other := _open()) is not None and not other._closed:
            raise InputError(
                f"a Checkpoint is open already, in {other.folder}. Give it all models and "
                "optimizers of the training (model=torch.nn.ModuleDict({...}), optimizer=[...]), "
                "or close() it first.",
                parameter="Checkpoint",
            )
        there = newest_first(self.folder)
        if resume is None and there:
            raise InputError(
                f"{self.folder} holds checkpoints. resume='auto' goes on from the newest; a new "
                "training needs a new folder.",
                parameter="folder",
            )
        saved = None if resume is None else choose(AUTO if there else resume, self.folder)
        if saved is not None:
            said = self._parts.load(saved)
            self.steps, self.resumed_from = saved.step, saved.path
            self._several_graphs = bool(saved.content.get("several_graphs"))
            said += [_SEVERAL_GRAPHS] if self._several_graphs else []
            for line in (f"going on from {saved.path}, step {self.steps}", *said):
                self._say(line)
        if self._interval is not None:
            self._ends.enter_context(self._notice.listening())
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
        save, end = self._due()
        if save:
            self.save()
        if end:
            self._say(f"{self._ended()}. Run it again.")
            if not self._alone:
                process_group.all_ranks(None)  # the first rank that ends has the others ended
            raise SystemExit(GO_ON_LATER)

    def save(self) -> None:
        """Save a checkpoint now, in the background. Every rank calls it, between two steps."""
        self._save({"several_graphs": self._several_graphs}, {})

    def close(self) -> None:
        """Wait until the last checkpoint is whole, and let signals end the script as before."""
        self._closed, self._flags = True, None
        _wait_for(self._under_way)
        self._ends.close()

    def _say(self, line: str) -> None:
        if process_group.rank() == 0:
            tell(f"checkpoint  {line}")

    def _due(self) -> tuple[bool, bool]:
        """Return whether to save and whether to end after this step. Every rank calls it."""
        if self._interval is None:
            return False, False
        timed, steps = self._interval.seconds, self._interval.steps
        over = timed is not None and time.monotonic() - self._began >= timed
        end, by_time = self._agreed(bool(self._notice.heard()), over)
        by_steps = steps is not None and self.steps % steps == 0
        if by_time or by_steps:
            self._began = time.monotonic()
        return (by_time or by_steps or end) and self.steps != self._saved_at, end

    def _agreed(self, *own: bool) -> tuple[bool, ...]:
        """Return which of the flags any rank had at the end of the step before."""
        if self._alone:
            return own
        agreed = tuple(False for _ in own)
        if self._flags is not None:
            self._under_way.pop("agreement")()
            agreed = tuple(map(bool, self._flags.tolist()))
        # What was agreed on now is not to be done again.
        flags = [flag and not old for flag, old in zip(own, agreed, strict=True)]
        self._flags = torch.tensor(flags).to(torch.int32)
        work: Any = dist.all_reduce(
            self._flags, dist.ReduceOp.MAX, group=self._group, async_op=True
        )
        self._under_way["agreement"] = work.wait
        return agreed

    def _save(self, common: dict[str, Any], of_rank: dict[str, Any]) -> None:
        """Copy the training's state, with `common` and `of_rank`, and write it in the background.

        Every rank calls it. A checkpoint that is still being written is waited for.
        """
        self._saved_at = self.steps
        self._under_way.pop("writing", lambda: None)()
        own = state.copied({**self._parts.of_rank(), **of_rank})
        ranks = [own] * process_group.world_size()
        if not self._alone:
            first = process_group.rank() == 0
            dist.gather_object(own, ranks if first else None, dst=0, group=self._group)
        if process_group.rank() == 0:
            self._copy = state.copied({**self._parts.state(), **common}, self._copy)
            content = {**self._copy, "format": state.FORMAT, "step": self.steps, "ranks": ranks}
            writing = threading.Thread(target=self._write, args=(content,), daemon=True)
            writing.start()
            self._under_way["writing"] = writing.join

    def _ended(self) -> str:
        """Finish a training that was told to end; return by what, and whether it was saved."""
        self.close()
        failure = process_group.from_rank_0(self.failure)
        how = f"without a new checkpoint ({failure})" if failure else "with a checkpoint"
        reason = self._notice.heard() or "another process's notice"
        return f"{reason}: ended after step {self.steps} {how}"

    def _write(self, content: dict[str, Any]) -> None:
        """Write a checkpoint, and delete all but the newest; in the thread."""
        with contextlib.suppress(OSError):
            present = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICENESS, present))
        step, began, self.failure = content["step"], time.perf_counter(), ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left in self.folder.glob(".*.tmp"):  # of a killed process
                left.unlink()
            path = of_step(self.folder, step)
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
        self._say(line)


def _check_folder(folder: Path) -> None:
    """Make the folder of checkpoints; raise InputError where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise InputError(
            f"folder={folder} cannot be used. {refusal(error)}.", parameter="folder"
        ) from None


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


def _wait_for(under_way: dict[str, Callable[[], Any]]) -> None:
    for name in list(under_way):
        under_way.pop(name)()


def _in_words(error: BaseException, folder: Path) -> str:
    """Return in one line why a checkpoint could not be written."""
    cause: BaseException | None = error
    while cause is not None:  # torch.save hides that a disk is full behind an error of its own
        if isinstance(cause, OSError) and cause.errno is not None:
            cause.filename = cause.filename or str(folder)
            return refusal(cause)
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {reason_of(error)}"
