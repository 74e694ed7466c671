"""Checkpoints of a run: which it goes on from, whether it fits, and what is saved of a run.

The order is: `choose` before anything is built, then a `RunCheckpoints` of the session: `begin`,
`due` at the end of each step, `save`, and `finish` or `end_early`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gallery_lib.checkpoint import folders, state
from gallery_lib.checkpoint.folders import AUTO, CHECKPOINTS
from gallery_lib.checkpoint.notice import ENDED_FILE, Notice
from gallery_lib.checkpoint.saver import Saver
from gallery_lib.checkpoint.state import Parts, Saved
from gallery_lib.comm import process_group
from gallery_lib.config import TrainConfig, command_line, options
from gallery_lib.config.intervals import interval_of
from gallery_lib.errors import GoOnLater, InputError, RunFailed
from gallery_lib.optim import schedules
from gallery_lib.system.files import written_if_possible
from gallery_lib.system.json_files import write_json
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE
from gallery_lib.train.measurements import Trained
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.run_log import STEPS_FILE
from gallery_lib.train.session import Session

_OF_THE_TRAINING = (
    *("model", "amp_level", "amp_dtype", "batch_size", "image_size", "sequence_length"),
    *("lr", "lr_schedule", "lr_warmup_steps", "lr_step_size", "lr_schedule_steps"),
    *("label_smoothing", "weight_decay", "max_grad_norm", "data_dir", "seed"),
)
"""Options that are the training's own. A run that goes on with others would be another one."""
_GRAPHS = "compiled_graphs"
"""Name, in a rank's part of a checkpoint, of the positions at which graphs were made."""


@contextlib.contextmanager
def notice_of_run(config: ResolvedConfig) -> Iterator[Notice]:
    """Context: signals ask a run that saves checkpoints to end; others end as ever."""
    if config.checkpoint_every is None:
        yield Notice()
        return
    notice = Notice(Path(config.run_dir), int(os.environ.get(HEARS_NOTICE_VARIABLE, "0")))
    with notice.listening():
        yield notice


def choose(config: ResolvedConfig) -> Saved | None:
    """Return what the run goes on from; None where it starts anew. A collective call.

    Raises:
        InputError: the checkpoint is of other options, or none can be used.
    """
    if config.resume is None:
        return None
    own = Path(config.run_dir) / CHECKPOINTS
    saved = state.choose(config.resume, own if config.resume == AUTO else None)
    if saved is None:
        return None
    before, present = saved.manifest.facts.get("config"), options.to_mapping(config)
    if not isinstance(before, dict):
        raise InputError(
            f"{saved.path} is a checkpoint of a script, and not of a run.", parameter="resume"
        )
    for name in _OF_THE_TRAINING:
        if before.get(name) != present[name]:
            what = "another model" if name == "model" else "another training"
            raise InputError(
                f"{saved.path} is of {what}, with {name}={before.get(name)}, and this run has "
                f"{name}={present[name]}. Give it the same options.",
                parameter=name,
            )
    if process_group.rank() == 0 and saved.path.parent.resolve() == own.resolve():
        for aside in folders.set_aside_later(saved.path):
            saved.refused.append(f"{aside.name} is left behind: it has more steps.")
    return saved


def _check_length(saved: Saved, config: ResolvedConfig) -> None:
    before = saved.manifest.facts["config"]["max_steps"]
    depends = config.lr_schedule in schedules.WITH_LENGTH and config.lr_schedule_steps is None
    if depends and before != config.max_steps:
        raise InputError(
            f"{saved.path} is of a run of {before} steps, and this run has {config.max_steps}: "
            f"lr_schedule={config.lr_schedule} would be another. Give it the same length; a run "
            "that may get longer needs lr_schedule_steps from its start.",
            parameter="max_steps",
        )


def parts_of(session: Session) -> Parts:
    """Return the objects of a run whose state its checkpoints hold."""
    schedule = session.updates.schedule
    return Parts(
        session.model,
        [session.optimizer],
        [] if schedule is None else [schedule],
        session.scaler,
        session.loader,
    )


class RunCheckpoints:
    """Checkpoints of one run. Without `checkpoint_every` none is saved."""

    def __init__(self, session: Session, notice: Notice) -> None:
        config = session.config
        self._session, self._parts = session, parts_of(session)
        self._graphs = CompiledGraphs(session)
        self._folder = Path(config.run_dir) / CHECKPOINTS
        self._saver: Saver | None = None
        if config.checkpoint_every is not None:
            interval = interval_of(config.checkpoint_every)
            self._saver = Saver(self._folder, interval, config.keep, session.log.say, notice)

    def begin(self, saved: Saved | None, logged_steps: int) -> Trained:
        """Return where the training begins: at its start, or where a checkpoint has left off.

        `logged_steps` is the last step that the run has logged before in its folder.
        """
        session, config = self._session, self._session.config
        if saved is None:
            if config.resume:
                session.log.say(f"resumed  {config.run_dir} has no checkpoint: a new start")
            return Trained()
        _check_length(saved, config)
        self._parts.check(saved)
        step, lost = saved.manifest.step, max(0, logged_steps - saved.manifest.step)
        before, now = saved.manifest.world_size, process_group.world_size()
        session.log.say(
            f"resumed  from {saved.path}  at step {step}"
            + (f"; {lost} logged steps are done again" if lost else "")
            + (f"; {now} processes go on, and it was of {before}" if now != before else "")
        )
        trained = self._load(saved)
        entry = {
            "step": step,
            "lost_steps": lost,
            "processes_before": before,
            "processes": now,
            "resumed_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "checkpoint": str(saved.path),
        }
        trained.interruptions = [*saved.common["run"]["interruptions"], entry]
        return trained

    def _load(self, saved: Saved) -> Trained:
        """Bring the session to the checkpoint; return what its training loop had left."""
        session, run = self._session, saved.common["run"]
        self._graphs.make_again(saved)
        said = self._parts.load(saved)
        clock = session.clock
        clock.durations = run["step_seconds"].tolist()
        clock.page_faults = run["page_faults"].tolist()
        clock.phases = {name: values.tolist() for name, values in run["phases"].items()}
        session.updates.skipped_before = run["skipped_steps"]
        session.learning_rates = run["learning_rates"].tolist()
        # The loop reads its own losses since the last line of the log alone.
        session.losses = [torch.zeros(())] * saved.manifest.step
        for line in (*saved.refused, *said):
            session.log.say(f"resumed  {line}")
        return Trained(
            curve=[[step, loss] for step, loss in enumerate(run["losses"].tolist(), 1)],
            epoch=run["epoch"],
        )

    def due(self, steps: int) -> tuple[bool, bool]:
        """Return whether to save after so many steps, and whether to end then."""
        self._graphs.step_done()
        return (False, False) if self._saver is None else self._saver.due(steps)

    def save(self, trained: Trained, steps: int) -> None:
        """Save a checkpoint after `steps`, all of which are logged."""
        assert self._saver is not None
        session, clock = self._session, self._session.clock
        run = {
            "epoch": trained.epoch,
            "losses": _values([loss for _, loss in trained.curve]),
            "step_seconds": _values(clock.read()),
            "page_faults": torch.tensor(clock.page_faults, dtype=torch.int64),
            "phases": {name: _values(values) for name, values in clock.phases.items()},
            "skipped_steps": session.updates.skipped_steps(),
            "learning_rates": _values(session.learning_rates),
            "interruptions": trained.interruptions,
        }
        saved = self._parts.state(run=run)
        config = dataclasses.asdict(session.config)
        saved.facts = {"config": config, "torch": str(torch.__version__)}
        saved.of_rank[_GRAPHS] = self._graphs.positions
        log = Path(session.config.run_dir) / STEPS_FILE
        if log.exists():
            saved.copies = {STEPS_FILE: (log, log.stat().st_size)}
        self._saver.save(steps, saved)

    def finish(self) -> None:
        """Wait until the last checkpoint is whole."""
        if self._saver is not None:
            self._saver.finish()

    def end_early(self, steps: int) -> GoOnLater | RunFailed:
        """Return the error with which a run ends that was told to, and note it in its folder."""
        assert self._saver is not None
        config, reason = self._session.config, self._saver.end(steps)
        if not folders.newest_first(self._folder):
            return RunFailed(f"{reason}, and there is none before it.")
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            with written_if_possible(Path(config.run_dir)):
                write_json(Path(config.run_dir) / ENDED_FILE, {"step": steps, "reason": reason})
        return GoOnLater(f"{reason}. Go on with: {_resume_command(config)}")


def _values(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _resume_command(config: ResolvedConfig) -> str:
    """Return the command line with which a run goes on, without its launcher's options."""
    names = TrainConfig.__dataclass_fields__
    given = TrainConfig(**{name: getattr(config, name) for name in names} | {"resume": AUTO})
    words = [word for word in command_line.words_of(given) if not word.startswith("--model=")]
    return shlex.join(["python3", "launch_single_task.py", f"--model={config.model}", *words])


# --------------------------------------------------------------------------------------------------
# Graphs of the compiler.
#
# The compiler makes a graph for the first shape that it sees, and one for any shape when a second
# comes. So the graph of a batch, and with it the last bit of a sum, depends on the batches before.
# A checkpoint holds the positions in the data at which graphs were made. A resumed run takes these
# batches through the model once more, in that order, before it goes on.


def _graphs_made() -> int:
    """Return the number of graphs that Dynamo has made in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


class CompiledGraphs:
    """Positions in the data of a run at which the compiler made graphs, on this rank."""

    def __init__(self, session: Session) -> None:
        self._session, self._made = session, _graphs_made()
        self.positions: list[dict[str, Any]] = []

    def step_done(self) -> None:
        """Note the position of the batch of this step, if the compiler made a graph for it."""
        made = _graphs_made()
        if made > self._made and self._session.config.compiler_opt:
            position = self._session.loader.state_dict()
            self.positions.append({**position, "taken": position["taken"] - 1})
        self._made = made

    def make_again(self, saved: Saved) -> None:
        """Have the compiler and DDP add numbers in the order in which the run before did.

        Forward and backward passes are run on the batches for which graphs were made. Ranks that
        have fewer of them repeat their last one, since gradients are averaged over all ranks. DDP
        orders its buckets in its first backward pass, and sums over more than two ranks depend on
        that, so there is one pass then. What the passes change is loaded afterwards. A collective
        call.
        """
        session, world_size = self._session, process_group.world_size()
        own: list[dict[str, Any]] = []
        if session.config.compiler_opt and saved.manifest.world_size == world_size:
            own = saved.of_rank().get(_GRAPHS, [])
        passes = max(int(world_size > 2), *process_group.all_ranks(len(own)))
        batch: Any = None
        for number in range(passes):
            if number < len(own):
                session.loader.load_state_dict(own[number])
            if number < len(own) or batch is None:
                batch = next(iter(session.loader))
            session.backward(session.forward(batch))
            session.optimizer.zero_grad(set_to_none=True)
        self.positions, self._made = [*own], _graphs_made()
