"""One process of a run that is compared; `launcher/forked.py` calls `main` in each.

interleaved.py and float64_reference.py start these processes. A variant trains its warm-up steps,
runs the gradient probe, then trains a block of steps whenever it has the turn. The reference does
the first few steps and the probe in float64, counts operations, and ends. A second run does all
steps of a variant again, from weights that are moved by a rounding (second_run.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from gallery_lib.comm import process_group
from gallery_lib.config import TrainConfig
from gallery_lib.console.phases import PROBE, TRAFFIC, TURNS
from gallery_lib.launcher import worker
from gallery_lib.measure.comparison import first_pass, float64_model, gradient_probe, work_per_step
from gallery_lib.measure.comparison.gradient_parity import PROBE_BATCHES
from gallery_lib.measure.comparison.turns import TurnClient
from gallery_lib.measure.variants import recipes
from gallery_lib.models.dropout import without_dropout
from gallery_lib.system.json_files import write_json
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session

ROLE_VARIABLE = "GALLERY_MEASURE"
PROBE_FILE = "probe.pt"
TRAFFIC_FILE = "traffic.json"
WORKER = "gallery_lib.measure.comparison.worker"
"""The module whose `main` launched processes run."""


REFERENCE = "reference"
SECOND = "second"
"""Names of the roles that take no turns."""
_ROUNDING = {"O0": 2**-21, "O1": 2**-10}
"""Relative size by which a second run moves weights: about the rounding of a sum of products."""


@dataclass(frozen=True)
class Role:
    """Orders for a process that a comparison starts, as JSON in an environment variable."""

    name: str
    address: list[Any] | None  # of the turn server; None for the reference
    warmup_steps: int
    block_steps: int
    probe_batches: int
    recipe: list[str] = field(default_factory=list)  # recipes.py
    counts_traffic: bool = False  # that of one more step, after the last turn

    def variable(self) -> dict[str, str]:
        """Return the variable that carries this role."""
        return {ROLE_VARIABLE: json.dumps(dataclasses.asdict(self))}


class Probing(Observer):
    """Observer that collects the first batches, keeps the initial weights, and probes gradients."""

    takes_turns = True

    def __init__(self, role: Role, run_dir: Path) -> None:
        self.role = role
        self.run_dir = run_dir
        self.initial: dict[str, Tensor] = {}
        self.batches: list[Any] = []
        self.first_batch: Any = None

    def model_built(self, model: nn.Module) -> None:
        """Switch dropout off and keep the initial weights."""
        without_dropout(model)  # dropout would draw different numbers in each run
        self.initial = gradient_probe.initial_state(model, self.run_dir)

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Keep the first batches."""
        if step < PROBE_BATCHES:
            self.batches.append(batch)

    def probe(self, session: Session, *, restore: bool = True, count_flops: bool = False) -> None:
        """Run the probe and write its result, from rank 0.

        `flops` are those of all its batches on this rank.
        """
        session.phases.begin(PROBE)
        with FlopCounterMode(display=False) if count_flops else contextlib.nullcontext() as counter:
            result = gradient_probe.run_probe(
                session, self.initial, self.batches[: self.role.probe_batches], restore=restore
            )
        if counter is not None:
            result["flops"] = counter.get_total_flops()
        if session.log.rank == 0:
            result |= {
                "weights": gradient_probe.digest(self.initial),
                "first_batches": [gradient_probe.digest(batch) for batch in self.batches],
            }
            gradient_probe.save(result, session.log.run_dir / PROBE_FILE)
        self.first_batch = self.batches[0]
        self.batches.clear()


@contextlib.contextmanager
def _loading_stopped() -> Iterator[None]:
    """Context: stop the processes that load data, so that they fill no queue while others train.

    A turn then finds as many batches as the last one left, as if there had been no wait.
    """
    processes = [p.pid for p in multiprocessing.active_children() if p.pid is not None]
    _send(signal.SIGSTOP, processes)
    try:
        yield
    finally:
        _send(signal.SIGCONT, processes)


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


class Variant(Probing):
    """Observer that takes turns with the other variants."""

    def __init__(self, role: Role, run_dir: Path) -> None:
        super().__init__(role, run_dir)
        assert role.address is not None
        self.turns = TurnClient(role.address, role.name, int(os.environ.get("RANK", "0")))

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Run the probe after the warm-up, and wait for the turn before each block of steps."""
        super().before_step(session, step, batch)
        counted = step - self.role.warmup_steps
        if counted < 0 or counted % self.role.block_steps:
            return
        session.clock.pause()
        if counted == 0:
            self.probe(session)
            session.phases.begin(TURNS)
        with _loading_stopped():
            self.turns.wait()
        session.clock.resume()

    def after_training(self, session: Session) -> None:
        """Wait for the turn, and count the traffic of one more step where the role asks for it."""
        self.turns.wait()
        if self.role.counts_traffic and session.log.rank == 0:
            session.phases.begin(TRAFFIC)
            write_json(
                session.log.run_dir / TRAFFIC_FILE,
                work_per_step.step_traffic_bytes(session, self.first_batch),
            )


class Reference(Probing):
    """Observer that does the same training in float64."""

    def model_built(self, model: nn.Module) -> None:
        """Prepare the model as for a variant, then convert it to float64."""
        super().model_built(model)
        float64_model.widen(model)

    def after_training(self, session: Session) -> None:
        """Run the probe and count its operations."""
        # The probe can use this memory; nothing is trained any more.
        session.optimizer.state.clear()
        self.probe(session, restore=False, count_flops=True)


class Second(Probing):
    """Observer that does a variant's training again, from weights that are moved by a rounding."""

    def __init__(self, role: Role, run_dir: Path, amp_level: str) -> None:
        super().__init__(role, run_dir)
        self.rounding = _ROUNDING[amp_level]

    def model_built(self, model: nn.Module) -> None:
        """Move the weights, alike on all ranks; then prepare the model as for a variant."""
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in model.parameters():
                if p.is_floating_point():
                    noise = torch.randn(p.shape, generator=generator)
                    p.mul_((1.0 + self.rounding * noise).to(p.device, p.dtype))
        super().model_built(model)

    def after_training(self, session: Session) -> None:
        """Run the probe."""
        session.optimizer.state.clear()
        self.probe(session, restore=False)


def _observer(role: Role, config: TrainConfig, run_dir: Path) -> Observer:
    if role.name == SECOND and role.address is None:
        return Second(role, run_dir, config.amp_level)
    return (Variant if role.address else Reference)(role, run_dir)


def body(config: TrainConfig) -> None:
    """Train in the role that the environment names."""
    role = Role(**json.loads(os.environ[ROLE_VARIABLE]))
    assert config.run_dir is not None
    observer = _observer(role, config, Path(config.run_dir))
    if isinstance(observer, Reference) and ".py:" in config.model and process_group.rank() == 0:
        # The reference comes first, and is not timed.
        first_pass.try_once(config, process_group.device())
    train(config, observer, recipes.recipe(role.recipe))


def main(arguments: Sequence[str]) -> None:
    """Train in the role that the environment names, and end this process."""
    worker.end_after(body, arguments)
