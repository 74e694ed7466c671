"""A run in progress: data, model, optimizer and log, built in the order in which a run needs them.

The baseline and the accelerated backend are built by the same lines. They differ in what the recipe
asks of `accelerate()` (recipe.py).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib import optim, tasks
from gallery_lib.comm import process_group
from gallery_lib.console.phases import DATA, MODEL, PhaseLog
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.early_start import EarlyWorkers
from gallery_lib.data.loading.length_buckets import LengthBucketSampler
from gallery_lib.errors import InputError
from gallery_lib.memory import allocator
from gallery_lib.optim.updates import Updates
from gallery_lib.system.processes import end_with_parent
from gallery_lib.tasks.task import Splits, Task
from gallery_lib.train import precision
from gallery_lib.train.recipe import Plain, Recipe
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.run_log import RunLog
from gallery_lib.train.step_clock import StepClock


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
    losses: list[Tensor] = field(default_factory=list)  # of this rank, one scalar per step

    def forward(self, batch: Any) -> Tensor:
        """Return the loss of one batch, computed under the run's autocast."""
        with precision.autocast(self.autocast_dtype, self.loader.device.type):
            return self.task.loss(self.model, batch)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss`, scaled by the scaler, to `.grad`."""
        self.propagate(self.scaler.scale(loss))

    def step(self, batch: Any) -> None:
        """Run one training step."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(batch)
        self.clock.phase_done("forward")
        self.backward(loss)
        self.clock.phase_done("backward")
        self.losses.append(loss.detach())
        self.updates.take()
        self.clock.phase_done("optimizer")


class Observer:
    """Hooks into a run, for measure/. The methods of this class do nothing."""

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
    earlier: Path | None = None,
    after_step: int = 0,
) -> Session:
    """Build everything that a run needs before its first step, and return it as a `Session`.

    A resumed run has the log of the steps before, `earlier`, of which `after_step` is the last.
    """
    phases.begin(DATA)
    torch.set_num_threads(config.threads)
    task = tasks.of(config)
    splits = task.data(config)
    loader = _loader(config, task, splits)
    # Each of several processes gets a loader of its own, of its share.
    # The first batches of a resumed run are not known yet.
    if recipe.keeps_loader and process_group.world_size() == 1 and not after_step:
        loader.begin()
    if config.compiler_opt and allocator.active() and process_group.device().type == "cpu":
        # Prefault while one core imports, draws weights and traces.
        allocator.touch_ahead(_training_state_bytes(task))
    phases.begin(MODEL)
    torch.manual_seed(config.seed)
    model = task.build_model()
    observer.model_built(model)
    dtype = precision.autocast_dtype(config, process_group.device().type)
    rates: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    build_optimizer = functools.partial(task.optimizer.build, list(model.parameters()), **rates)
    ready = recipe.prepare(Plain(model, loader, build_optimizer, config, dtype))
    _check_enough_data(config, task, splits, ready.loader)
    scaler = precision.grad_scaler(dtype, ready.loader.device.type, sync_free=ready.kernels)
    schedule = _schedule(task, ready.optimizer)
    return Session(
        config=dataclasses.replace(config, max_steps=_total_steps(config, ready.loader)),
        task=task,
        splits=splits,
        model=ready.model,
        plain=model,
        loader=ready.loader,
        optimizer=ready.optimizer,
        scaler=scaler,
        updates=Updates(ready.optimizer, scaler, schedule, config.max_grad_norm),
        autocast_dtype=ready.autocast_dtype,
        log=RunLog(
            Path(config.run_dir),
            rank=process_group.rank(),
            tensorboard=config.tensorboard,
            earlier=earlier,
            after_step=after_step,
        ),
        phases=phases,
        clock=StepClock(ready.loader.device.type),
        techniques=ready.techniques,
        propagate=ready.propagate,
    )


def _schedule(task: Task, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    factor = task.optimizer.schedule
    return None if factor is None else torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def _loader(config: ResolvedConfig, task: Task, splits: Splits) -> EarlyWorkers:
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
        worker_init_fn=end_with_parent,
    )


def _training_state_bytes(task: Task) -> int:
    """Return the bytes of weights, gradients and optimizer states in fp32.

    0 where the task does not say how many weights its model has.
    """
    one = nn.Parameter(torch.zeros(1))
    optimizer = task.optimizer.build([one], lr=None, weight_decay=None, accelerated=False)
    return (task.parameters or 0) * (one.element_size() + optim.first_step_bytes(optimizer))


def _check_enough_data(
    config: ResolvedConfig, task: Task, splits: Any, loader: DeviceLoader
) -> None:
    """Raise InputError where the training data does not fill one batch of every process."""
    if len(loader) == 0:
        processes = process_group.world_size()
        raise InputError(
            f"batch_size={config.batch_size} on {processes} process(es) needs "
            f"{config.batch_size * processes} training samples, and the data set has "
            f"{len(splits.train) * task.samples_per_item}. Use a smaller batch_size or more data.",
            parameter="batch_size",
        )


def _total_steps(config: ResolvedConfig, loader: DeviceLoader) -> int:
    """Return the steps to train: the fewer of `max_steps` and `epochs`, where both are given."""
    of_epochs = len(loader) * (config.epochs or 1)
    if config.max_steps is None:
        return of_epochs
    return min(config.max_steps, of_epochs) if config.epochs else config.max_steps
