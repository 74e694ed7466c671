"""A run in progress: data, model, optimizer and log, built in the order in which a run needs them.

The baseline and the accelerated backend are built by the same lines. They differ in what the recipe
asks of `accelerate()`. measure/variants.py has other recipes: single techniques, and other
libraries.
"""

from __future__ import annotations

import dataclasses
import functools
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader

from gallery_lib import memory, optim, tasks
from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.comm import process_group
from gallery_lib.config import Config, TrainConfig
from gallery_lib.console.progress import DATA, MODEL, PhaseLog
from gallery_lib.data.loading import workers
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.progress import EarlyWorkers
from gallery_lib.data.loading.samplers import LengthBucketSampler
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import usage
from gallery_lib.memory import takes_any_layout
from gallery_lib.optim.grad_scaler import Updates
from gallery_lib.system import gpu, hardware, spinning
from gallery_lib.tasks.task import Splits, Task
from gallery_lib.train import precision, pretrained
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.results import RunLog


@dataclass(frozen=True)
class Plain:
    """Input of a recipe: a task's model and loader as they are, and the options of the run."""

    model: nn.Module
    loader: DataLoader[Any]
    # The task's builder; `accelerated` means the same as in OptimizerSpec.build.
    build_optimizer: Callable[..., torch.optim.Optimizer]
    config: TrainConfig
    autocast_dtype: torch.dtype | None  # None: fp32


@dataclass
class Prepared:
    """A model that is ready to train, with its batches and optimizer.

    Its parameters are the plain model's own objects.
    """

    model: nn.Module
    loader: DeviceLoader
    optimizer: torch.optim.Optimizer
    # Dtype of forward pass and loss. None: fp32, or the recipe applies autocast itself.
    autocast_dtype: torch.dtype | None
    techniques: dict[str, str]
    # Adds a loss's gradients to `.grad`.
    propagate: Callable[[Tensor], Any] = field(default_factory=lambda: Tensor.backward)
    # Whether our own kernels run the optimizer's step, and with it the scaler's.
    kernels: bool = False


def lay_out_batches(model: nn.Module, batches: DeviceLoader, done: dict[str, str]) -> None:
    """Have a task's images arrive in the layout of its convolutions, which spares a conversion.

    Only where no code but that of libraries sees them before.
    """
    if done.get("layout") == "channels_last" and takes_any_layout(model):
        batches.memory_format = torch.channels_last


def backend_config(config: TrainConfig) -> Config:
    """Return the `accelerate()` configuration that a training run asks for."""
    result = Config() if config.compiler_opt else Config.plain()
    result.compute.kernels = config.compiler_opt and config.kernels
    result.tune = config.compiler_opt and config.tune
    return result


class Recipe:
    """Preparation by `accelerate()`, as the run's options ask."""

    keeps_loader: bool = True
    """Whether batches of a run of one process come from the plain loader itself.

    Otherwise they come from another loader that the recipe makes of it.
    """

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train, with its batches and optimizer."""
        plain_optimizer = plain.build_optimizer(accelerated=False)
        config = backend_config(plain.config)
        config.compute.bf16 = plain.autocast_dtype is torch.bfloat16
        config.compute.fp16 = plain.autocast_dtype is torch.float16
        wrapped, batches, optimizer = accelerate(plain.model, plain.loader, plain_optimizer, config)
        lay_out_batches(plain.model, batches, techniques(wrapped))
        kernels = usage.used(batches.device)
        return Prepared(
            wrapped, batches, optimizer, plain.autocast_dtype, techniques(wrapped), kernels=kernels
        )


@dataclass
class Session:
    """A run in progress, as an Observer sees it. `config.max_steps` is what it will train."""

    config: ResolvedConfig
    task: Task
    splits: Splits
    model: nn.Module
    plain: nn.Module  # the task's own module, inside `model`
    loader: DeviceLoader
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    updates: Updates
    autocast_dtype: torch.dtype | None
    log: RunLog
    phases: PhaseLog
    clock: StepClock
    techniques: dict[str, str]
    propagate: Callable[[Tensor], Any]
    started_from: pretrained.Fit | None = None  # weights of a file; None: drawn ones
    losses: list[Tensor] = field(default_factory=list)  # of this rank, one scalar per step
    learning_rate: float = 0.0  # of the latest step

    def forward(self, batch: Any) -> Tensor:
        """Return the loss of one batch, computed under the run's autocast."""
        with precision.autocast(self.autocast_dtype, self.loader.device.type):
            return self.task.loss(self.model, batch)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, scaled by the scaler, to `.grad`."""
        self.propagate(self.scaler.scale(loss))

    def forget_peak_memory(self) -> None:
        """Have the peak of device memory begin anew: the first steps try kernels and compile."""
        if self.loader.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.loader.device)

    def step(self, batch: Any) -> None:
        """Run one training step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(batch)
        self.clock.phase_done("forward")
        self.backward(loss)
        self.clock.phase_done("backward")
        self.losses.append(loss.detach())
        self.learning_rate = self.updates.learning_rate()
        self.updates.take()
        self.clock.phase_done("optimizer")


class Observer:
    """Hooks into a run, for measure/. The methods of this class do nothing."""

    takes_turns = False
    """Whether others train while the run is paused, so that who lets it go looks at the machine."""

    def model_built(self, model: nn.Module) -> None:
        """Receive the plain model once it has its initial weights, on the CPU."""

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        """Act before step number `step` (from 0) begins with `batch`."""

    def after_training(self, session: Session) -> None:
        """Act after the last step and before evaluation."""


def items_per_batch(config: ResolvedConfig, task: Task) -> int:
    """Return the number of data set items in a batch.

    Raises:
        InputError: where the batch size is no multiple of the samples of an item.
    """
    if config.batch_size % task.samples_per_item:
        raise InputError(
            f"batch_size={config.batch_size} must be a multiple of {task.samples_per_item}: "
            f"{task.name} takes samples in groups.",
            parameter="batch_size",
        )
    return config.batch_size // task.samples_per_item


def open_session(
    config: ResolvedConfig,
    phases: PhaseLog,
    observer: Observer,
    recipe: Recipe,
    *,
    earlier: str | None = None,
) -> Session:
    """Build everything that a run needs before its first step, and return it as a `Session`.

    A resumed run has the text of the log before, `earlier`.
    """
    phases.begin(DATA)
    torch.set_num_threads(config.threads)
    task = tasks.of(config)
    splits = task.data(config)
    loader = _loader(config, task, splits)
    # Several processes get loaders of their own; a resumed run's first batches are not known yet.
    if recipe.keeps_loader and process_group.world_size() == 1 and earlier is None:
        loader.begin()
    device_type = process_group.device().type
    if device_type == "cpu":
        spinning.watch()  # whatever is trained: other work slows a baseline as well
    if config.compiler_opt and memory.has_tunables() and device_type == "cpu":
        # Prefault while one core imports, draws weights and traces.
        memory.touch_ahead(_training_state_bytes(task))
    phases.begin(MODEL)
    torch.manual_seed(config.seed)
    model = task.build_model()
    # A checkpoint has the weights of a run that is resumed.
    started_from = None
    if config.pretrained is not None and earlier is None:
        started_from = pretrained.load(model, config.pretrained)
    observer.model_built(model)
    dtype = precision.autocast_dtype(config.amp_level, config.amp_dtype, device_type)
    build = functools.partial(
        task.optimizer.build,
        list(model.parameters()),
        lr=config.lr,
        weight_decay=config.weight_decay,
    )
    ready = recipe.prepare(Plain(model, loader, build, config, dtype))
    ready.loader.draw_from_generators()
    scaler = precision.grad_scaler(dtype, ready.loader.device.type, sync_free=ready.kernels)
    samples = len(cast(Any, splits.train)) * task.samples_per_item
    total_steps = _total_steps(config, len(ready.loader), samples)
    schedule = _schedule(config, task, ready.optimizer, total_steps)
    run_dir, rank = Path(config.run_dir), process_group.rank()
    log = RunLog(run_dir, rank=rank, earlier=earlier or "")
    return Session(
        config=dataclasses.replace(config, max_steps=total_steps),
        task=task,
        splits=splits,
        model=ready.model,
        plain=model,
        loader=ready.loader,
        optimizer=ready.optimizer,
        scaler=scaler,
        updates=Updates(ready.optimizer, scaler, schedule, config.max_grad_norm),
        autocast_dtype=ready.autocast_dtype,
        log=log,
        phases=phases,
        clock=StepClock(ready.loader.device.type),
        techniques=ready.techniques,
        propagate=ready.propagate,
        started_from=started_from,
    )


def _loader(config: ResolvedConfig, task: Task, splits: Splits) -> EarlyWorkers:
    workers.shorten_paths()
    generator = torch.Generator().manual_seed(config.seed)
    lengths = getattr(splits.train, "lengths", None)
    batch_size = items_per_batch(config, task)
    sampler = None
    if lengths is not None:
        sampler = LengthBucketSampler(lengths, batch_size * process_group.world_size(), generator)
    return EarlyWorkers(
        splits.train,
        batch_size=batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=config.workers,
        persistent_workers=config.workers > 0,
        collate_fn=getattr(splits.train, "collate", None),
        pin_memory=torch.cuda.is_available(),
        generator=generator,
        worker_init_fn=workers.begin,
    )


def _training_state_bytes(task: Task) -> int:
    """Return the bytes of weights, gradients and optimizer states in fp32.

    0 where the task does not say how many weights its model has.
    """
    one = nn.Parameter(torch.zeros(1))
    optimizer = task.optimizer.build([one], lr=None, weight_decay=None, accelerated=False)
    return (task.parameters or 0) * (one.element_size() + optim.first_step_bytes(optimizer))


def _total_steps(config: ResolvedConfig, steps_of_pass: int, samples: int) -> int:
    """Return the steps to train: the fewer of `max_steps` and `epochs`, where both are given.

    Raises:
        InputError: where the training data does not fill one batch of every process.
    """
    if steps_of_pass == 0:
        processes = process_group.world_size()
        raise InputError(
            f"batch_size={config.batch_size} on {processes} process(es) needs "
            f"{config.batch_size * processes} training samples, and the data set has {samples}. "
            "Use a smaller batch_size or more data.",
            parameter="batch_size",
        )
    of_epochs = steps_of_pass * (config.epochs or 1)
    if config.max_steps is None:
        return of_epochs
    return min(config.max_steps, of_epochs) if config.epochs else config.max_steps


def _schedule(
    config: ResolvedConfig, task: Task, optimizer: torch.optim.Optimizer, total_steps: int
) -> LRScheduler | None:
    """Return the schedule of the learning rate; None where it is constant.

    Raises:
        InputError: for options that do not go together, or do not fit `total_steps`.
    """
    name, warmup, given = config.lr_schedule, config.lr_warmup_steps, config.lr_schedule_steps
    own, steps = task.optimizer.schedule, given or total_steps
    has_length = name in optim.WITH_LENGTH
    parameter, problem = "lr_schedule_steps", ""
    if given and not has_length:
        problem = f"is for lr_schedule={', '.join(optim.WITH_LENGTH)}, and it is {name}"
    elif steps < total_steps:
        problem = f"ends before the run, which has {total_steps} steps"
    elif warmup and name == "task" and own:
        parameter, problem = "lr_warmup_steps", f"needs another lr_schedule than {task.name}'s own"
    elif has_length and warmup and warmup > steps - 2:
        parameter, problem = "lr_warmup_steps", f"of {steps} steps leaves fewer than two"
    if problem:
        value = getattr(config, parameter)
        raise InputError(f"{parameter}={value} {problem}.", parameter=parameter)
    if name == "task" and own:
        return LambdaLR(optimizer, own)
    return optim.scheduler(name, optimizer, steps=steps, warmup_steps=warmup)


# --------------------------------------------------------------------------------------------------
# Clock for training steps and their phases on the device that works, with page faults on the host.
#
# On the CPU a step ends when the call returns. On CUDA the host runs ahead of the device. So
# events on the stream time the steps. They are read later, which does not make the device wait.
# Before the host waits to read them, while the device is at work, it looks at the device's clocks.
# `pause` and `resume` cut out the time in which another variant has its turn. The step that is
# under way keeps the time that it has taken before, which is that of its wait for data.


_IN_FLIGHT = 10
"""How many times the batches in flight a sustained mean is taken over at least."""


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def mark(cuda: bool) -> Any:
    """Return the time of the host's clock, or an event that will have the device's."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(began: Any, ended: Any) -> float:
    """Return the seconds from one mark to another; the device must have come to both."""
    return float(ended - began if isinstance(began, float) else began.elapsed_time(ended) / 1000)


class StepClock:
    """Durations in seconds of steps that `step_done()` marks, without paused time.

    Paused is the time between `pause()` and `resume()`. `phase_done(name)` marks the end of a part
    of the step. What follows the last mark belongs to no phase.
    """

    def __init__(self, device_type: str) -> None:
        self.cuda = device_type == "cuda"
        self.durations: list[float] = []
        # Minor faults of this process, by step: pages that its allocator had given back.
        self.page_faults: list[int] = []
        self.phases: dict[str, list[float]] = {}
        self.looks: list[gpu.GpuState] = []
        self._pending: list[tuple[list[float], Any, Any, float]] = []
        self._last: Any = None
        self._last_phase: Any = None
        self._last_faults = 0
        self._before_pause = 0.0

    def start(self) -> None:
        """Start the clock: the first step begins now."""
        self._last = self._last_phase = mark(self.cuda)
        self._last_faults = _page_faults()

    def phase_done(self, name: str) -> None:
        """Mark the end of a part of the current step (on CUDA: that it is queued)."""
        now = mark(self.cuda)
        self._pending.append((self.phases.setdefault(name, []), self._last_phase, now, 0.0))
        self._last_phase = now

    def step_done(self) -> None:
        """Mark the end of one step (on CUDA: that it is queued) and the beginning of the next."""
        now = mark(self.cuda)
        self._pending.append((self.durations, self._last, now, self._before_pause))
        self._before_pause = 0.0
        self._last = self._last_phase = now
        faults = _page_faults()
        self.page_faults.append(faults - self._last_faults)
        self._last_faults = faults

    def read(self) -> list[float]:
        """Return all durations so far in seconds; on CUDA this waits for the device."""
        if self.cuda and self._pending:
            bus = hardware.visible_gpus()[torch.cuda.current_device()].bus
            self.looks += filter(None, [gpu.look(bus)])
            self._pending[-1][2].synchronize()
        for series, begin, end, before in self._pending:
            series.append(seconds_between(begin, end) + before)
        self._pending.clear()
        return self.durations

    def usual_phases(self, warmup: int = 0) -> dict[str, float]:
        """Return the seconds of each phase in a usual step.

        They are means over those steps after `warmup` whose durations are in the middle half. So
        they add up to such a step. Medians of single phases need not: a step that waits for data
        may have a short rest.
        """
        durations = self.read()
        by_duration = sorted(range(warmup, len(durations)), key=durations.__getitem__)
        quarter = len(by_duration) // 4
        middle = by_duration[quarter : len(by_duration) - quarter]
        return {
            name: sum(values[step] for step in middle) / len(middle)
            for name, values in self.phases.items()
        }

    def sustained(self, warmup: int, batches_in_flight: int) -> dict[str, float]:
        """Return the mean step over a long time, with the wait for data in it, in seconds.

        Loading processes may hide their slowness as long as batches lie ready. So the first batches
        after `warmup`, which may have lain ready, do not count, and ten times as many must follow.
        With fewer steps there is no mean, only `steps` and `steps_needed`.
        """
        durations, inputs = self.read(), self.phases.get("input", [])
        first, steps_needed = warmup + batches_in_flight, _IN_FLIGHT * batches_in_flight
        counted = durations[first:]
        facts = {"steps": float(len(counted)), "steps_needed": float(first + steps_needed)}
        if not counted or len(counted) < steps_needed or len(inputs) < len(durations):
            return facts
        return facts | {
            "step_seconds": sum(counted) / len(counted),
            "input_seconds": sum(inputs[first : len(durations)]) / len(counted),
            "steady_input_seconds": self.usual_phases(warmup).get("input", 0.0),
        }

    def pause(self) -> None:
        """Stop the clock in the middle of a step, after the device has finished its queued work."""
        now = mark(self.cuda)
        self._pending.append(([], self._last, now, 0.0))  # to wait for
        self.read()
        self._before_pause += seconds_between(self._last, now)

    def resume(self) -> None:
        """Restart the clock in the middle of the step in which it was stopped."""
        self.start()
