"""Go on with a run that was interrupted: which checkpoint, whether it fits, what it brings back.

The order is: `choose` before anything is built, `begin` when the session is there.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gallery_lib.checkpoint import choice, folders
from gallery_lib.checkpoint.choice import Choice
from gallery_lib.checkpoint.folders import AUTO
from gallery_lib.checkpoint.training_state import Parts, rank_state
from gallery_lib.comm import process_group
from gallery_lib.config import options
from gallery_lib.errors import InputError
from gallery_lib.optim import schedules
from gallery_lib.train import starts
from gallery_lib.train.compiled_graphs import STATE, CompiledGraphs
from gallery_lib.train.measurements import Trained
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.run_log import STEPS_FILE
from gallery_lib.train.session import Session
from gallery_lib.train.starts import Earlier, Start

_OF_THE_TRAINING = (
    "model",
    "amp_level",
    "amp_dtype",
    "batch_size",
    "image_size",
    "sequence_length",
    "lr",
    "lr_schedule",
    "lr_warmup_steps",
    "lr_step_size",
    "lr_schedule_steps",
    "label_smoothing",
    "weight_decay",
    "max_grad_norm",
    "data_dir",
    "seed",
)
"""Options that are the training's own. A run that goes on with others would be another one."""


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run goes on from."""

    choice: Choice
    common: dict[str, Any]

    @property
    def step(self) -> int:
        """Return the number of steps that were done."""
        return self.choice.manifest.step

    @property
    def steps_file(self) -> Path:
        """Return the log of the steps up to the checkpoint."""
        return self.choice.path / STEPS_FILE

    def check(self, session: Session, parts: Parts) -> None:
        """Raise InputError where the checkpoint does not fit a session; nothing is changed."""
        _check_length(self.choice, session)
        parts.check(self.choice.path, self.common)

    def load(self, session: Session, parts: Parts, graphs: CompiledGraphs) -> Trained:
        """Bring a session to the checkpoint; return what its training loop had left."""
        self._prepare_sums(session, graphs)
        said = parts.load(self.choice.path, self.choice.manifest, self.common)
        run = self.common["run"]
        clock = session.clock
        clock.durations = run["step_seconds"].tolist()
        clock.page_faults = run["page_faults"].tolist()
        clock.phases = {name: values.tolist() for name, values in run["phases"].items()}
        session.updates.skipped_before = run["skipped_steps"]
        session.learning_rates = run["learning_rates"].tolist()
        # The loop reads its own losses since the last line of the log alone.
        session.losses = [torch.zeros(())] * self.step
        for line in (*self.choice.refused, *said):
            session.log.say(f"resumed  {line}")
        return Trained(
            curve=[[step + 1, loss] for step, loss in enumerate(run["losses"].tolist())],
            epoch=run["epoch"],
        )

    def _prepare_sums(self, session: Session, graphs: CompiledGraphs) -> None:
        """Have the compiler and DDP add numbers in the order in which the run before did."""
        manifest, world_size = self.choice.manifest, process_group.world_size()
        positions: list[dict[str, Any]] = []
        if session.config.compiler_opt and manifest.world_size == world_size:
            positions = rank_state(self.choice.path, manifest).get(STATE, [])
        if not graphs.make_again(positions) and world_size > 2:
            _order_buckets(session)


def begin(
    session: Session,
    parts: Parts,
    graphs: CompiledGraphs,
    resumed: Resumed | None,
    earlier: Earlier,
) -> Trained:
    """Return where the training begins: at its start, or where a checkpoint has left off.

    The log and the run's folder are told of an interruption.

    Args:
        session: the run.
        parts: what its checkpoints hold.
        graphs: what the compiler has made in it.
        resumed: the checkpoint to go on from; None: the run starts.
        earlier: what the run's folder knew before this start.
    """
    config, processes = session.config, process_group.world_size()
    last, before, interruptions = earlier.start, processes, list[dict[str, Any]]()
    if resumed is not None:
        resumed.check(session, parts)
        before = resumed.choice.manifest.world_size
        interruptions = resumed.common["run"]["interruptions"]
    elif last is not None:
        before = last.processes
    if last is not None:  # it also knows of starts that have saved no checkpoint
        interruptions = last.interruptions
    if resumed is not None or last is not None:
        entry = starts.interruption(
            step=resumed.step if resumed is not None else 0,
            logged_steps=earlier.logged_steps,
            before=before,
            processes=processes,
            checkpoint=resumed.choice.path if resumed is not None else None,
        )
        interruptions = [*interruptions, entry]
        line = _in_words(entry, config)
    else:
        line = f"{config.run_dir} has no checkpoint yet: a new start" if config.resume else ""
    saves = config.checkpoint_every is not None or config.resume is not None
    if saves and process_group.rank() == 0:
        Start(processes, interruptions).write(Path(config.run_dir))
    damage = earlier.damage and f"interruptions before are not known: {earlier.damage}"
    for words in filter(None, (line, damage)):
        session.log.say(f"resumed  {words}")
    trained = Trained() if resumed is None else resumed.load(session, parts, graphs)
    trained.interruptions = interruptions
    return trained


def _in_words(entry: dict[str, Any], config: ResolvedConfig) -> str:
    now, before, lost = entry["processes"], entry["processes_before"], entry["lost_steps"]
    return (
        (
            f"from {entry['checkpoint']}  at step {entry['step']}"
            if entry["checkpoint"]
            else f"{config.run_dir} was interrupted before its first checkpoint: a new start"
        )
        + (f"; {lost} logged steps are done again" if lost else "")
        + (f"; {now} processes go on, and it was of {before}" if now != before else "")
    )


def _check_length(chosen: Choice, session: Session) -> None:
    """Raise InputError where the schedule of the learning rate is of a run of another length."""
    config = session.config
    before = chosen.manifest.facts["config"]["max_steps"]
    depends = config.lr_schedule in schedules.WITH_LENGTH and config.lr_schedule_steps is None
    if depends and before != config.max_steps:
        raise InputError(
            f"{chosen.path} is of a run of {before} steps, and this run has {config.max_steps}: "
            f"lr_schedule={config.lr_schedule} would be another. Give it the same length; a run "
            "that may get longer needs lr_schedule_steps from its start.",
            parameter="max_steps",
        )


def _order_buckets(session: Session) -> None:
    """Run a backward pass, after which DDP orders its buckets as in the run before.

    Sums over more than two ranks depend on the order. What the pass changes is brought back then.
    """
    session.backward(session.forward(next(iter(session.loader))))
    session.optimizer.zero_grad(set_to_none=True)


def choose(config: ResolvedConfig) -> Resumed | None:
    """Return what the run goes on from; None where it starts anew. A collective call.

    Raises:
        InputError: the checkpoint is of other options, or none can be used.
    """
    if config.resume is None:
        return None
    own = Path(config.run_dir) / folders.CHECKPOINTS
    chosen = choice.choose(config.resume, own if config.resume == AUTO else None)
    if chosen is None:
        return None
    _check_options(chosen, config)
    if process_group.rank() == 0 and chosen.path.parent.resolve() == own.resolve():
        for aside in folders.set_aside_later(chosen.path):
            chosen.refused.append(f"{aside.name} is left behind: it has more steps.")
    return Resumed(chosen, chosen.common())


def _check_options(chosen: Choice, config: ResolvedConfig) -> None:
    saved = chosen.manifest.facts.get("config")
    if not isinstance(saved, dict):
        raise InputError(
            f"{chosen.path} is a checkpoint of a script, and not of a run.", parameter="resume"
        )
    present = options.to_mapping(config)
    for name in _OF_THE_TRAINING:
        if saved.get(name) != present[name]:
            what = "another model" if name == "model" else f"a training with {name}={saved[name]}"
            raise InputError(
                f"{chosen.path} is of {what}"
                + (f" ({saved[name]})" if name == "model" else "")
                + f", and this run has {name}={present[name]}. Give it the same options.",
                parameter=name,
            )


def state_of_run(session: Session, trained: Trained) -> dict[str, Any]:
    """Return what a checkpoint holds of a run beside its training, after all steps are logged."""
    clock = session.clock
    return {
        "epoch": trained.epoch,
        "losses": torch.tensor([loss for _, loss in trained.curve], dtype=torch.float64),
        "step_seconds": _values(clock.read()),
        "page_faults": torch.tensor(clock.page_faults, dtype=torch.int64),
        "phases": {name: _values(values) for name, values in clock.phases.items()},
        "skipped_steps": session.updates.skipped_steps(),
        "learning_rates": _values(session.learning_rates),
        "interruptions": trained.interruptions,
    }


def _values(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def facts(config: ResolvedConfig) -> dict[str, Any]:
    """Return what the manifest of a run's checkpoint says of it."""
    return {"config": dataclasses.asdict(config), "torch": str(torch.__version__)}
