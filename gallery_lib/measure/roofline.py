"""Measurement of a roofline: one training process, started and ended here, and what it measures.

The process trains a few steps. Then the same batch is trained on again and again. First one step is
counted. Then rounds follow: the machine's limits, a step, and a step under the profiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import statistics
import sys
import time
import timeit
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gallery_lib.config import LaunchConfig, RooflineConfig, TrainConfig, options
from gallery_lib.console.progress import ROOFLINE, Progress, progress_display
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.launcher import preflight, worker
from gallery_lib.measure import operator_counts as counts
from gallery_lib.measure.comparison.untimed import run_part
from gallery_lib.measure.operator_counts import PREFIX, Counts, Kernels, Operation, Work
from gallery_lib.measure.roofline_result import (
    BETWEEN,
    COPIES,
    FILE,
    PRODUCTS,
    Limits,
    Part,
    Roofline,
    groups,
    read_roofline,
    write_roofline,
)
from gallery_lib.measure.step_profile import FUSED, OPTIMIZER, group_of
from gallery_lib.system import hardware, paths
from gallery_lib.system.machine_load import Watch
from gallery_lib.system.processes import interruptible
from gallery_lib.train.loop import train
from gallery_lib.train.resolved import resolve
from gallery_lib.train.session import Observer, Session

PART = "roofline"
ROUNDS_VARIABLE = "GALLERY_ROOFLINE_ROUNDS"
_STEPS_BEYOND_WARM_UP = 2
_COPY = "copy"
# A CPU that emulates bfloat16 by plain loops would take 14 s for the largest product.
_LONGEST_PRODUCT = 1.0
_SIZES = (256, 512, 1024, 2048)
_COPY_BYTES = 2**28
OPTIMIZER_STEP = Operation(OPTIMIZER)
_BETWEEN = Operation(BETWEEN)


def check_machine() -> None:
    """Raise InputError on a machine with a GPU."""
    if hardware.gpu_count():
        raise InputError(
            "gallery roofline measures CPUs: it was not made for GPUs, nor tried on one. "
            "With CUDA_VISIBLE_DEVICES= it measures this machine's CPU.",
            parameter="roofline",
        )


@interruptible("the roofline")
def measure(
    config: TrainConfig, asked: RooflineConfig, *, progress: bool | Progress = True
) -> tuple[Path, Roofline]:
    """Measure the roofline of a task's training step on this machine's CPU.

    Returns the folder with `roofline.json`, and what it holds. Options of a run's length and files
    are replaced. `progress` may be an open display to use.

    Raises:
        InputError: for bad options, on a machine with a GPU, and where memory is short.
        RunFailed: the process fails.
        Interrupted: the measurement is stopped.
    """
    asked = options.checked(asked)
    check_machine()
    resolved = resolve(config, local_processes=1, run_dir="")
    preflight.check(resolved, LaunchConfig())
    folder = paths.output_folder(asked.out, PART, resume=False, file=FILE, work=PART)
    run_dir, warmup = paths.free_name(folder, "run"), max(config.warmup_steps, 1)
    config = dataclasses.replace(
        config,
        amp_level=resolved.amp_level,
        warmup_steps=warmup,
        max_steps=warmup + _STEPS_BEYOND_WARM_UP,
        evaluate=False,
        run_dir=str(run_dir),
    )
    variables = {
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",  # every graph is lowered anew
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        ROUNDS_VARIABLE: str(asked.rounds),
        "KINETO_LOG_LEVEL": "99",  # the profiler is quiet
    }
    with progress_display(progress) as shown:
        name = config.model.rsplit(":", 1)[-1]
        run_part(config, LaunchConfig(), __name__, variables, shown, label=name, part=PART)
    roofline = read_roofline(run_dir / FILE)
    write_roofline(folder / FILE, roofline)
    return folder, roofline


# --------------------------------------------------------------------------------------------------
# The process


class Measuring(Observer):
    """Observer that measures the roofline after the last step of a run."""

    def __init__(self, run_dir: Path, rounds: int, kernels: Kernels | None) -> None:
        self.run_dir, self.rounds = run_dir, rounds
        self.kernels = kernels  # of compiled code; None without a compiler
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
        prepared = {name: prepared_product(getattr(torch, name)) for name in sorted(dtypes)}
        prepared[_COPY] = prepared_copy()
        rates: dict[str, list[float]] = {name: [] for name in prepared}
        seconds_of_step(lambda: self.step(session), names)  # the first has its start in it
        steps, profiled, watch = [], [], Watch()
        watch.at_pause()
        for _ in range(self.rounds):
            for name, (run, work_of_run) in prepared.items():
                rates[name].append(work_of_run / best_seconds(run, repeats=3))
            steps.append(self.step(session))
            profiled.append(seconds_of_step(lambda: self.step(session), names))
            watch.at_pause()
        medians = {name: statistics.median(measured) for name, measured in rates.items()}
        limits = Limits(copy_bytes_per_second=medians.pop(_COPY), flops_per_second=medians)
        parts = operations(work, middle_of(profiled), limits)
        roofline = Roofline(
            task=session.config.model,
            date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            options=dataclasses.asdict(session.config),
            environment=hardware.machine_facts(),
            limits=limits,
            step_seconds=statistics.median(steps),
            profiled_seconds=statistics.median(sum(step.values()) for step in profiled),
            load=watch.seen(),
            groups=groups(parts),
            operations=parts,
        )
        write_roofline(self.run_dir / FILE, roofline)

    def counted(self, session: Session) -> dict[Operation, Work]:
        """Train one step and return its work; RunFailed where compiled code did not run in it."""
        if self.kernels is not None:
            self.kernels.calls.clear()
        session.optimizer.zero_grad(set_to_none=True)
        with Counts() as counter:
            session.backward(session.forward(self.batch))
        work = dict(counter.work)
        if self.kernels is not None:
            work |= self.kernels.work()
            if self.kernels.one_call and not self.kernels.calls:
                raise RunFailed(
                    "this release of torch runs no compiled code while operators are counted, so a "
                    "compiled step has no roofline: use torch 2.15, or --no-compiler-opt"
                )
        work[OPTIMIZER_STEP] = Work(1, counts.optimizer_bytes(session.optimizer))
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


def best_seconds(body: Callable[[], Any], repeats: int) -> float:
    """Return the shortest time of so many calls, in seconds."""
    return min(timeit.repeat(body, repeat=repeats, number=1))


def prepared_product(dtype: torch.dtype) -> tuple[Callable[[], Any], float]:
    """Return the largest product that takes at most a second, to be run, and its FLOPs."""
    rate, chosen = 0.0, None
    for size in _SIZES:
        flops = 2.0 * size**3
        if chosen is not None and flops / rate > _LONGEST_PRODUCT:
            break
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        product = functools.partial(torch.mm, a, b, out=torch.empty_like(a))
        product()
        rate, chosen = flops / best_seconds(product, 1), (product, flops)
    assert chosen is not None
    return chosen


def prepared_copy() -> tuple[Callable[[], Any], float]:
    """Return a copy between arrays far larger than caches, and the bytes that it moves."""
    source = torch.randn(_COPY_BYTES // 4)
    target = torch.empty_like(source)
    target.copy_(source)
    return functools.partial(target.copy_, source), 2.0 * _COPY_BYTES


def body(config: TrainConfig) -> None:
    """Train and measure."""
    assert config.run_dir is not None
    with counts.recorded() if config.compiler_opt else contextlib.nullcontext() as kernels:
        rounds = int(os.environ[ROUNDS_VARIABLE])
        train(config, Measuring(Path(config.run_dir), rounds, kernels))


def main(arguments: Sequence[str]) -> None:
    """Train and measure, and end this process."""
    worker.end_after(body, arguments)


# --------------------------------------------------------------------------------------------------
# Seconds of each operation in a step, from torch's profiler.
#
# An operator's time includes that of the operators it calls: `aten::convolution_backward` has the
# conversions that it does itself. What no counted operator has stays with its own name, and what
# is no operator is time between them.


def seconds_of_step(step: Callable[[], float], counted: Collection[str]) -> dict[Operation, float]:
    """Run one step on the CPU under the profiler, and return the seconds of each operation.

    The step returns its seconds; the optimizer's part of it is a region of the profiler with the
    name `OPTIMIZER`. `counted` names the operators whose work is known.
    """
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        seconds = step()
    times: dict[Operation, float] = defaultdict(float)
    waiting: list[tuple[Any, Operation | None]] = [
        (event, None) for event in profiler.events() or () if event.cpu_parent is None
    ]
    while waiting:
        event, owner = waiting.pop()
        owner = owner or _owner(event, counted)
        times[owner or _unowned(event)] += event.self_cpu_time_total / 1e6
        waiting += [(child, owner) for child in event.cpu_children]
    times[_BETWEEN] += max(0.0, seconds - sum(times.values()))
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


# --------------------------------------------------------------------------------------------------
# Work, times and limits of a step put together, by operation


OWN = "own kernels"
_MERGED = {
    "batch norms": "normalisation",
    "layer norms": "normalisation",
    "copies and conversions": "data movement",
    "fills and new memory": "data movement",
}


def roofline_group(name: str) -> str:
    """Return the group under which a roofline lists the operation `name`.

    The groups are those of a step's profile (`step_profile.group_of`), and coarser: norms are one,
    and so is the movement of data. Convolutions are two, forward and backward. The compiler's
    generated kernels are FUSED, this package's are OWN; optimizer and time between operators stay.
    """
    if name in (OPTIMIZER, BETWEEN):
        return name
    if name.startswith(PREFIX):
        return FUSED
    if name.startswith("gallery::"):
        return OWN
    group = group_of(name)
    if group == "convolutions":
        return f"{group}, {'backward' if 'backward' in name else 'forward'}"
    return _MERGED.get(group, group)


def middle_of(steps: Sequence[Mapping[Operation, float]]) -> dict[Operation, float]:
    """Return the mean seconds of each operation over the middle half of the steps.

    The steps are ordered by their whole time, so that the few that something disturbed, such as the
    profiler's own new memory, are left out and the rest still adds up to a step.
    """
    ordered = sorted(steps, key=lambda step: sum(step.values()))
    cut = len(ordered) // 4
    middle = ordered[cut : len(ordered) - cut]
    found = {operation for step in middle for operation in step}
    return {
        operation: sum(step.get(operation, 0.0) for step in middle) / len(middle)
        for operation in found
    }


def operations(
    work: Mapping[Operation, Work], seconds: Mapping[Operation, float], limits: Limits
) -> list[Part]:
    """Return a part for each operation that was counted or timed, the most to gain first."""
    parts = []
    for operation in {**work, **seconds}:
        done = work.get(operation, Work())
        rate = limits.flops_per_second[done.dtype] if done.flops and done.dtype else 1.0
        by_products, by_copies = done.flops / rate, done.bytes / limits.copy_bytes_per_second
        limited_by = PRODUCTS if by_products > by_copies else COPIES
        parts.append(
            Part(
                name=operation.name.removeprefix(PREFIX),
                group=roofline_group(operation.name),
                shapes=" ".join("×".join(map(str, shape)) for shape in operation.shapes),
                calls=done.calls,
                bytes=done.bytes,
                flops=done.flops,
                seconds=seconds.get(operation, 0.0),
                limit_seconds=max(by_products, by_copies),
                limited_by=limited_by if max(by_products, by_copies) else None,
            )
        )
    return sorted(parts, key=lambda part: -part.gain)


if __name__ == "__main__":
    main(sys.argv[1:])
