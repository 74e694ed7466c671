"""Checkpoints of a run: which it goes on from, whether it fits, and what is saved of a run.

The order is: `choose` before anything is built, then a `RunCheckpoints` of the session: `begin`,
`due` at the end of each step, `save_run`, and `close` or `end_early`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gallery_lib.checkpoint import state
from gallery_lib.checkpoint.folders import CHECKPOINTS, newest_first
from gallery_lib.checkpoint.state import Saved, graphs_made
from gallery_lib.checkpoint.training import Checkpoint, Notice
from gallery_lib.comm import process_group
from gallery_lib.errors import GoOnLater, InputError, RunFailed
from gallery_lib.optim import WITH_LENGTH
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.results import STEPS_FILE
from gallery_lib.train.session import Session

_OF_THE_TRAINING = (
    *("model", "amp_level", "amp_dtype", "batch_size", "image_size", "sequence_length"),
    *("lr", "lr_schedule", "lr_warmup_steps", "lr_schedule_steps"),
    *("weight_decay", "max_grad_norm", "data_dir", "seed"),
)
"""Options that are the training's own. A run that goes on with others would be another one."""
_GRAPHS = "compiled_graphs"
"""Name, in a rank's part of a checkpoint, of the positions at which graphs were made."""


def choose(config: ResolvedConfig) -> Saved | None:
    """Return what the run goes on from; None where it starts anew. A collective call.

    Raises:
        InputError: the checkpoint is of other options, or none can be used.
    """
    if config.resume is None:
        return None
    saved = state.choose(config.resume, Path(config.run_dir) / CHECKPOINTS)
    if saved is None:
        return None
    if "run" not in saved.content:
        raise InputError(
            f"{saved.path} is a checkpoint of a script, and not of a run.", parameter="resume"
        )
    before, present = saved.content["config"], dataclasses.asdict(config)
    for name in _OF_THE_TRAINING:
        if before.get(name) != present[name]:
            what = "another model" if name == "model" else "another training"
            raise InputError(
                f"{saved.path} is of {what}, with {name}={before.get(name)}, and this run has "
                f"{name}={present[name]}. Give it the same options.",
                parameter=name,
            )
    return saved


@dataclass
class Trained:
    """What the training loop leaves."""

    # [[step, loss], …] with every step from 1; the loss is the mean over ranks.
    curve: list[list[float]] = field(default_factory=list)
    diverged: dict[str, int] | None = None  # step, rank
    broken_off: bool = False  # whether training ended where it diverged
    step_seconds: list[float] = field(default_factory=list)
    epoch: int = 0  # number of the pass under way
    interruptions: list[dict[str, Any]] = field(default_factory=list)  # oldest first


class RunCheckpoints(Checkpoint):
    """Checkpoints of one run. Without `checkpoint_every` none is saved."""

    def __init__(self, session: Session, config: ResolvedConfig, notice: Notice) -> None:
        self._session, self._config = session, config
        super().__init__(
            Path(config.run_dir) / CHECKPOINTS,
            model=session.model,
            optimizer=session.optimizer,
            scheduler=session.updates.schedule,
            scaler=session.scaler,
            loader=session.loader,
            every=config.checkpoint_every,
            keep=config.keep,
        )
        self._notice, self._made = notice, graphs_made()
        self._positions: list[dict[str, Any]] = []

    def _begin(self, resume: object) -> None:
        """Do nothing: `begin` goes on from a checkpoint."""

    def _say(self, line: str) -> None:
        self._session.log.say(f"checkpoint  {line}")

    def begin(self, saved: Saved | None, logged_steps: int) -> Trained:
        """Return where the training begins: at its start, or where a checkpoint has left off.

        `logged_steps` is the last step that the run has logged before in its folder.
        """
        session, config = self._session, self._config
        if saved is None:
            if config.resume:
                session.log.say(f"resumed  {config.run_dir} has no checkpoint: a new start")
            return Trained()
        if config.lr_schedule in WITH_LENGTH and config.lr_schedule_steps is None:
            then, here = saved.content["run"]["total_steps"], session.config.max_steps
            if then != here:
                raise InputError(
                    f"{saved.path} is of a run of {then} steps, and this run has {here}: "
                    f"lr_schedule={config.lr_schedule} would be another one. lr_schedule_steps="
                    f"{then} keeps it, given from the start.",
                    parameter="max_steps",
                )
        step, lost = saved.step, max(0, logged_steps - saved.step)
        before, now = saved.world_size, process_group.world_size()
        session.log.say(
            f"resumed  from {saved.path}  at step {step}"
            + (f"; {lost} logged steps are done again" if lost else "")
            + (f"; {now} processes go on, and it was of {before}" if now != before else "")
        )
        trained = self._load(saved)
        entry = {"step": step, "lost_steps": lost, "processes_before": before, "processes": now}
        trained.interruptions = [*saved.content["run"]["interruptions"], entry]
        return trained

    def _load(self, saved: Saved) -> Trained:
        """Bring the session to the checkpoint; return what its training loop had left."""
        session, run = self._session, saved.content["run"]
        self._make_graphs_again(saved)
        said = self._parts.load(saved)
        clock = session.clock
        clock.durations = run["step_seconds"].tolist()
        clock.page_faults = run["page_faults"].tolist()
        clock.phases = {name: values.tolist() for name, values in run["phases"].items()}
        session.updates.skipped_before = run["skipped_steps"]
        # The loop reads its own losses since the last line of the log alone.
        session.losses = [torch.zeros(())] * saved.step
        for line in said:
            session.log.say(f"resumed  {line}")
        return Trained(
            curve=[[step, loss] for step, loss in enumerate(run["losses"].tolist(), 1)],
            epoch=run["epoch"],
        )

    # The compiler makes a graph for the first shape that it sees, and one for any shape when a
    # second comes. So the graph of a batch, and with it the last bit of a sum, depends on the
    # batches before. A checkpoint holds the positions in the data at which this rank's graphs were
    # made. A resumed run takes these batches through the model once more, in that order.

    def due(self, steps: int) -> tuple[bool, bool]:
        """Return whether to save after so many steps, and whether to end then."""
        self.steps, made = steps, graphs_made()
        if made > self._made and self._config.compiler_opt:
            position = self._session.loader.state_dict()
            self._positions.append({**position, "taken": position["taken"] - 1})
        self._made = made
        save, end = self._due()
        at_end = self._interval is not None and steps == self._session.config.max_steps
        return save or (at_end and steps != self._saved_at), end

    def _make_graphs_again(self, saved: Saved) -> None:
        """Have the compiler and DDP add numbers in the order in which the run before did.

        Forward and backward passes are run on the batches for which graphs were made. Ranks that
        have fewer of them repeat their last one, since gradients are averaged over all ranks. DDP
        orders its buckets in its first backward pass, and sums over more than two ranks depend on
        that, so there is one pass then. What the passes change is loaded afterwards. A collective
        call.
        """
        session, world_size = self._session, process_group.world_size()
        if self._config.compiler_opt and saved.world_size == world_size:
            self._positions = [*saved.of_rank()[_GRAPHS]]
        own, batch = self._positions, None
        passes = max(int(world_size > 2), *process_group.all_ranks(len(own)))
        for number in range(passes):
            if number < len(own):
                session.loader.load_state_dict(own[number])
            if number < len(own) or batch is None:
                batch = next(iter(session.loader))
            session.backward(session.forward(batch))
            session.optimizer.zero_grad(set_to_none=True)
        self._made = graphs_made()

    def save_run(self, trained: Trained) -> None:
        """Save a checkpoint after the present step; all steps are logged."""
        session, clock = self._session, self._session.clock
        run: dict[str, Any] = {
            "epoch": trained.epoch,
            "total_steps": session.config.max_steps,
            "losses": _values([loss for _, loss in trained.curve]),
            "step_seconds": _values(clock.read()),
            "page_faults": torch.tensor(clock.page_faults, dtype=torch.int64),
            "phases": {name: _values(values) for name, values in clock.phases.items()},
            "skipped_steps": session.updates.skipped_steps(),
            "interruptions": trained.interruptions,
        }
        if process_group.rank() == 0:
            run["log"] = ""
            with contextlib.suppress(OSError):
                run["log"] = (Path(session.config.run_dir) / STEPS_FILE).read_text(encoding="utf-8")
        common = {"config": dataclasses.asdict(self._config), "run": run}
        self._save(common, {_GRAPHS: self._positions})

    def end_early(self) -> GoOnLater | RunFailed:
        """Return the error with which a run ends that was told to."""
        reason = self._ended()
        self._session.log.say(reason)
        if not newest_first(self.folder):
            return RunFailed(f"{reason}, and there is none before it.")
        return GoOnLater(f"{reason}. Run it again with --resume=auto.")


def _values(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)
