"""Process that trains a few steps, then measures the roofline of one; `measure` starts it.

After the warm-up the same batch is trained on again and again. First one step is counted. Then
rounds follow: the machine's limits, a step, and a step under the profiler.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import record_function

from gallery_lib.config import TrainConfig, options
from gallery_lib.console.phases import ROOFLINE
from gallery_lib.errors import RunFailed
from gallery_lib.launcher import worker
from gallery_lib.measure.comparison import machine_load
from gallery_lib.measure.profile.operator_groups import OPTIMIZER
from gallery_lib.measure.profile.roofline import combined, counts, generated, times
from gallery_lib.measure.profile.roofline.generated import Kernels
from gallery_lib.measure.profile.roofline.limits import LimitProbe
from gallery_lib.measure.profile.roofline.result import FILE, Roofline, Spread, write_roofline
from gallery_lib.system import hardware
from gallery_lib.system.version import library_version
from gallery_lib.train.loop import train
from gallery_lib.train.session import Observer, Session

ROUNDS_VARIABLE = "GALLERY_ROOFLINE_ROUNDS"
WORKER = "gallery_lib.measure.profile.roofline.worker"
"""The module whose `main` the launched process runs."""

_LIBRARIES = ("torch", "torchvision", "timm", "transformers", "gallery_lib")


def _pages_touched() -> int:
    """Return how many pages of memory this process has touched for the first time so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Measuring(Observer):
    """Observer that measures the roofline after the last step of a run."""

    def __init__(self, run_dir: Path, rounds: int, kernels: Kernels | None) -> None:
        """Write to `run_dir`. `kernels` are those of compiled code, None without a compiler."""
        self.run_dir, self.rounds, self.kernels = run_dir, rounds, kernels
        self.batch: Any = None

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Keep the batch."""
        self.batch = batch

    def after_training(self, session: Session) -> None:
        """Measure, and write the roofline."""
        session.phases.begin(ROOFLINE)
        work = self.counted(session)
        names = {operation.name for operation in work}
        dtypes = {done.dtype for done in work.values() if done.dtype}
        probe = LimitProbe(session.loader.device, dtypes)
        times.seconds_of_step(lambda: self.step(session), names)  # the first has its start in it
        steps, profiled, looks = [], [], [machine_load.look()]
        new_pages: list[int] = []
        for _ in range(self.rounds):
            probe.measure()
            steps.append(self.step(session))
            before = _pages_touched()
            profiled.append(times.seconds_of_step(lambda: self.step(session), names))
            new_pages.append(_pages_touched() - before)
            looks.append(machine_load.look())
        limits = probe.limits()
        counting = combined.middle_of(combined.settled(profiled, new_pages))
        operations = combined.operations(work, counting, limits)
        roofline = Roofline(
            task=session.config.model,
            date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            options=options.to_mapping(session.config),
            environment=hardware.machine_facts(),
            versions={name: library_version(name) or "not installed" for name in _LIBRARIES},
            techniques=session.techniques,
            limits=limits,
            step_seconds=Spread.of(steps),
            profiled_seconds=Spread.of([sum(step.values()) for step in profiled]),
            others=machine_load.others_between(looks, with_hidden=True),
            groups=combined.groups(operations),
            operations=operations,
        )
        write_roofline(self.run_dir / FILE, roofline)

    def counted(self, session: Session) -> dict[counts.Operation, counts.Work]:
        """Train one step and return its work.

        Raises:
            RunFailed: where compiled code did not run while it was counted.
        """
        if self.kernels is not None:
            self.kernels.calls.clear()
        session.optimizer.zero_grad(set_to_none=True)
        with counts.Counts() as counter:
            session.backward(session.forward(self.batch))
        work = dict(counter.work)
        if self.kernels is not None:
            work |= self.kernels.work()
            if self.kernels.one_call and not self.kernels.calls:
                raise RunFailed(
                    "this release of torch runs no compiled code while operators are counted, so a "
                    "compiled step has no roofline: use torch 2.15, or --no-compiler-opt"
                )
        moved = counts.optimizer_bytes(session.optimizer)
        work[times.OPTIMIZER_STEP] = counts.Work(1, moved)
        session.updates.take()
        return work

    def step(self, session: Session) -> float:
        """Train one step and return its seconds."""
        began = time.perf_counter()
        session.optimizer.zero_grad(set_to_none=True)
        session.backward(session.forward(self.batch))
        with record_function(OPTIMIZER):
            session.updates.take()
        return time.perf_counter() - began


def body(config: TrainConfig) -> None:
    """Train and measure."""
    assert config.run_dir is not None
    with generated.recorded() if config.compiler_opt else contextlib.nullcontext() as kernels:
        rounds = int(os.environ[ROUNDS_VARIABLE])
        train(config, Measuring(Path(config.run_dir), rounds, kernels))


def main(arguments: Sequence[str]) -> None:
    """Train and measure, and end this process."""
    worker.end_after(body, arguments)
