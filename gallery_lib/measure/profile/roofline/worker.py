"""Process that trains a few steps, then measures the roofline of one; `measure` starts it.

After the warm-up the same batch is trained on again and again. First one step is counted. Then
rounds follow: the machine's limits, a step, and a step under the profiler.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gallery_lib.config import TrainConfig, options
from gallery_lib.console.phases import ROOFLINE
from gallery_lib.errors import RunFailed
from gallery_lib.launcher import worker
from gallery_lib.measure.bench.machine_limits import (
    best_seconds,
    prepared_copy,
    prepared_product,
)
from gallery_lib.measure.profile.operator_groups import OPTIMIZER
from gallery_lib.measure.profile.roofline import combined, counts, generated
from gallery_lib.measure.profile.roofline.counts import Operation
from gallery_lib.measure.profile.roofline.generated import PREFIX, Kernels
from gallery_lib.measure.profile.roofline.result import (
    BETWEEN,
    FILE,
    Limits,
    Roofline,
    Spread,
    write_roofline,
)
from gallery_lib.system import hardware, machine_load
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
        seconds_of_step(lambda: self.step(session), names)  # the first has its start in it
        steps, profiled, looks = [], [], [machine_load.look()]
        new_pages: list[int] = []
        for _ in range(self.rounds):
            probe.measure()
            steps.append(self.step(session))
            before = _pages_touched()
            profiled.append(seconds_of_step(lambda: self.step(session), names))
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
        work[OPTIMIZER_STEP] = counts.Work(1, moved)
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


# --------------------------------------------------------------------------------------------------
# Limits of the machine, in turns with the steps: rates of matrix products and of a copy.
#
# The copy's arrays of 256 MiB are far larger than caches are. Its rate counts bytes read and bytes
# written.


_REPEATS = 3


class LimitProbe:
    """Products and a copy, prepared to be measured again and again."""

    def __init__(self, device: torch.device, dtypes: Iterable[str]) -> None:
        """Prepare a product for each dtype, such as `bfloat16`, and the copy."""
        self._device = device
        self._bodies = {
            dtype: prepared_product(device, getattr(torch, dtype)) for dtype in sorted(dtypes)
        }
        self._copy = prepared_copy(device)
        self._rates: dict[str, list[float]] = {dtype: [] for dtype in self._bodies}
        self._copies: list[float] = []

    def measure(self) -> None:
        """Measure each once more; the best of three counts."""
        for dtype, (product, flops) in self._bodies.items():
            self._rates[dtype].append(flops / best_seconds(product, self._device, _REPEATS))
        copy, moved = self._copy
        self._copies.append(moved / best_seconds(copy, self._device, _REPEATS))

    def limits(self) -> Limits:
        """Return the medians of what was measured, with the lowest and the highest."""
        return Limits(
            {dtype: Spread.of(rates) for dtype, rates in self._rates.items()},
            Spread.of(self._copies),
        )


# --------------------------------------------------------------------------------------------------
# Seconds of each operation in a step, from torch's profiler.
#
# An operator's time includes that of the operators it calls: `aten::convolution_backward` has the
# conversions that it does itself. What no counted operator has stays with its own name, and what
# is no operator is time between them.


OPTIMIZER_STEP = Operation(OPTIMIZER)
_BETWEEN = Operation(BETWEEN)


def seconds_of_step(step: Callable[[], float], counted: Collection[str]) -> dict[Operation, float]:
    """Run one step on the CPU under the profiler, and return the seconds of each operation.

    Args:
        step: trains one step and returns its seconds. The optimizer's part of it is a region of
            the profiler with the name `OPTIMIZER`.
        counted: names of the operators whose work is known.
    """
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        seconds = step()
    times = attributed(profiler.events() or (), counted)
    times[_BETWEEN] = times.get(_BETWEEN, 0.0) + max(0.0, seconds - sum(times.values()))
    return times


def attributed(events: Iterable[Any], counted: Collection[str]) -> dict[Operation, float]:
    """Return the seconds of each operation among the profiler's events."""
    times: dict[Operation, float] = defaultdict(float)
    waiting: list[tuple[Any, Operation | None]] = [
        (event, None) for event in events if event.cpu_parent is None
    ]
    while waiting:
        event, owner = waiting.pop()
        owner = owner or _owner(event, counted)
        times[owner or _unowned(event)] += event.self_cpu_time_total / 1e6
        waiting += [(child, owner) for child in event.cpu_children]
    return dict(times)


def _owner(event: Any, counted: Collection[str]) -> Operation | None:
    """Return the operation that has the event's time and that of all events below it."""
    if event.name == OPTIMIZER:
        return OPTIMIZER_STEP
    if event.name.startswith(PREFIX):
        return Operation(event.name)
    if event.name not in counted:
        return None
    shapes = tuple(
        tuple(shape)
        for shape in event.input_shapes or ()
        if shape and all(isinstance(size, int) for size in shape)
    )
    return Operation(event.name, shapes)


def _unowned(event: Any) -> Operation:
    """Return where the time of an event goes that nothing was counted for."""
    namespace, _, name = event.name.partition("::")
    is_operator = name and namespace in ("aten", "gallery", "mkldnn", "prims", "quantized")
    return Operation(event.name) if is_operator else _BETWEEN
