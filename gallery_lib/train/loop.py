"""One training run: `train(config) -> Results`, for the command line, notebooks and measurements.

The loop is plain: data, `accelerate()`, forward and loss under autocast, backward, optimizer. The
baseline and the accelerated backend go through the same lines. They differ in what `accelerate()`
is asked to do, and in whether our own kernels are used (`kernels/runtime/usage.py`). Kernels serve
the loss, the loader, and here the optimizer and the scaler. With more than one process, as
torchrun's variables say, DistributedDataParallel averages the gradients.

This module does not start processes (launcher/) and does not compare (measure/). A measurement may
also have another library make the model ready (recipe.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib import optim, stats, tasks
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import exposed_communication
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.compiler import compilations
from gallery_lib.config import TrainConfig, options, switches
from gallery_lib.console.phases import DATA, ENDING, EVALUATION, MODEL, TRAINING, WARM_UP, PhaseLog
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.early_start import EarlyWorkers
from gallery_lib.data.loading.length_buckets import LengthBucketSampler
from gallery_lib.errors import Diverged, InputError, SilentRank
from gallery_lib.kernels.runtime import call_counts, usage
from gallery_lib.memory import allocator
from gallery_lib.optim.updates import Updates
from gallery_lib.system import hardware, paths
from gallery_lib.system.processes import LAUNCHED_AT_VARIABLE, began_at, end_with_parent, now
from gallery_lib.tasks.task import Splits, Task
from gallery_lib.train import divergence, precision
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.recipe import Plain, Recipe
from gallery_lib.train.results import Results, data_lines, write_results
from gallery_lib.train.run_log import RunLog
from gallery_lib.train.step_clock import StepClock

WEIGHTS_FILE = "weights.pt"


@dataclass
class Session:
    """A run in progress, as an Observer sees it."""

    config: TrainConfig
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


def resolve(config: TrainConfig) -> TrainConfig:
    """Return `config`, checked; the task and this machine supply what was left open."""
    config = tasks.with_sizes(options.checked(config))
    task = tasks.get(config.model)
    local_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return dataclasses.replace(
        config,
        lr=task.optimizer.lr if config.lr is None else config.lr,
        weight_decay=task.optimizer.weight_decay
        if config.weight_decay is None
        else config.weight_decay,
        threads=config.threads or max(1, hardware.cores() // local_processes),
        run_dir=config.run_dir
        or process_group.from_rank_0(str(paths.new_run_dir(config.model.rsplit(":", 1)[-1]))),
    )


def _items(config: TrainConfig, task: Task) -> int:
    """Return the number of data set items in a batch.

    Raises InputError where the batch size is no multiple of the samples of an item.
    """
    assert config.batch_size is not None
    if config.batch_size % task.samples_per_item:
        raise InputError(
            f"batch_size={config.batch_size} must be a multiple of {task.samples_per_item}: "
            f"{task.name} takes samples in groups."
        )
    return config.batch_size // task.samples_per_item


def _loader(config: TrainConfig, task: Task, splits: Splits) -> EarlyWorkers:
    generator = torch.Generator().manual_seed(config.seed)
    lengths = getattr(splits.train, "lengths", None)
    sampler = None
    if lengths is not None:
        sampler = LengthBucketSampler(
            lengths, _items(config, task) * process_group.world_size(), generator
        )
    return EarlyWorkers(
        splits.train,
        batch_size=_items(config, task),
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


def _open(config: TrainConfig, phases: PhaseLog, observer: Observer, recipe: Recipe) -> Session:
    """Build everything that a run needs before its first step, and return it as a `Session`."""
    assert config.threads is not None and config.run_dir is not None
    phases.begin(DATA)
    torch.set_num_threads(config.threads)
    task = tasks.of(config)
    splits = task.data(config)
    loader = _loader(config, task, splits)
    # Each of several processes gets a loader of its own, of its share.
    if recipe.keeps_loader and process_group.world_size() == 1:
        loader.begin()
    if config.compiler_opt and allocator.active() and process_group.device().type == "cpu":
        # Prefault while one core imports, draws weights and traces.
        allocator.touch_ahead(_training_state_bytes(task))
    phases.begin(MODEL)
    torch.manual_seed(config.seed)
    model = task.build_model()
    observer.model_built(model)
    dtype = precision.autocast_dtype(config, process_group.device().type)
    build_optimizer = functools.partial(
        task.optimizer.build,
        list(model.parameters()),
        lr=config.lr,
        weight_decay=config.weight_decay,
    )
    ready = recipe.prepare(Plain(model, loader, build_optimizer, config, dtype))
    if len(ready.loader) == 0:
        world_size = process_group.world_size()
        raise InputError(
            f"batch_size={config.batch_size} on {world_size} process(es) needs "
            f"{config.batch_size * world_size} training samples, "  # type: ignore[operator]
            "and the data set has "
            f"{len(splits.train) * task.samples_per_item}. "  # type: ignore[arg-type]
            "Use a smaller batch_size or more data."
        )
    scaler = precision.grad_scaler(dtype, ready.loader.device.type, sync_free=ready.kernels)
    schedule = (
        torch.optim.lr_scheduler.LambdaLR(ready.optimizer, task.optimizer.schedule)
        if task.optimizer.schedule
        else None
    )
    return Session(
        config=config,
        task=task,
        splits=splits,
        model=ready.model,
        plain=model,
        loader=ready.loader,
        optimizer=ready.optimizer,
        scaler=scaler,
        updates=Updates(ready.optimizer, scaler, schedule, config.max_grad_norm),
        autocast_dtype=ready.autocast_dtype,
        log=RunLog(Path(config.run_dir), rank=process_group.rank(), tensorboard=config.tensorboard),
        phases=phases,
        clock=StepClock(ready.loader.device.type),
        techniques=ready.techniques,
        propagate=ready.propagate,
    )


def _batches(session: Session, total_steps: int) -> Iterator[tuple[int, int, Any]]:
    """Yield (epoch, step, batch), epoch after epoch, until the last step."""
    step = 0
    epoch = 0
    while step < total_steps:
        for batch in session.loader:
            yield epoch, step, batch
            step += 1
            if step == total_steps:
                return
        epoch += 1


def peak_memory_bytes(device_type: str) -> dict[str, int | None]:
    """Return the highest memory use of this process so far, on the host and on its device."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "host": host,
        "device": torch.cuda.max_memory_allocated() if device_type == "cuda" else None,
    }


def _mean_losses(session: Session, since: int) -> list[float]:
    """Return the losses from step `since` on, averaged over ranks."""
    recent = torch.stack([loss.double() for loss in session.losses[since:]])
    return (process_group.sum_over_ranks(recent) / process_group.world_size()).tolist()


def evaluate(session: Session) -> dict[str, float]:
    """Return the held-out metrics, each sample once.

    Evaluation runs eagerly, since it is not what is being compiled.
    """
    data: Any = session.splits.held_out
    share = range(process_group.rank(), len(data), process_group.world_size())
    loader = DataLoader(
        data,
        batch_size=_items(session.config, session.task),
        sampler=share,
        num_workers=session.config.workers,
        collate_fn=getattr(data, "collate", None),
        worker_init_fn=end_with_parent,
    )
    batches = DeviceLoader(loader, session.loader.device, session.loader.memory_format, shard=False)
    model = session.plain
    model.eval()
    sums: dict[str, Any] = {}
    with (
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        precision.autocast(session.autocast_dtype, batches.device.type),
    ):
        for batch in batches:
            for name, (total, count) in session.task.metrics(model, batch).items():
                pair = (
                    total.double(),
                    torch.tensor(float(count), device=batches.device, dtype=torch.float64),
                )
                sums[name] = (
                    tuple(a + b for a, b in zip(sums[name], pair, strict=True))
                    if name in sums
                    else pair
                )
    model.train()
    means = {
        name: process_group.sum_over_ranks(total) / process_group.sum_over_ranks(count)
        for name, (total, count) in sums.items()
    }
    return (
        session.task.summary(means)
        if session.task.summary
        else {name: float(mean) for name, mean in means.items()}
    )


def _run_steps(
    session: Session, warmup: int, total_steps: int, observer: Observer
) -> tuple[list[list[float]], divergence.Divergence | None]:
    """Train, and log every `log_interval` steps.

    Returns:
        The loss curve [[step, loss], …] with every step, and where training diverged, or None.
    """
    config, clock, phases = session.config, session.clock, session.phases
    curve: list[list[float]] = []
    diverged: divergence.Divergence | None = None
    if warmup:
        phases.begin(WARM_UP)
    else:
        phases.begin(TRAINING, total=total_steps)
    clock.start()
    for epoch, step, batch in _batches(session, total_steps):
        clock.phase_done("input")
        observer.before_step(session, step, batch)
        session.step(batch)
        if step + 1 == warmup:  # the last step that does not count begins the next phase
            phases.begin(TRAINING, count=warmup, total=total_steps)
        clock.step_done()
        if (step + 1) % config.log_interval == 0 or step + 1 == total_steps:
            since = len(curve)
            losses = _mean_losses(session, since)
            curve += [[since + i + 1, loss] for i, loss in enumerate(losses)]
            memory = peak_memory_bytes(session.loader.device.type)
            session.log.step(
                epoch=epoch,
                step=step + 1,
                batch_size=config.batch_size or 0,
                loss=losses[-1],
                step_seconds=clock.read()[since:],
                world_size=process_group.world_size(),
                peak_memory_bytes=memory["device"] or memory["host"] or 0,
            )
            if diverged is None:
                diverged = divergence.find(
                    losses, session.losses[since:], since + 1, session.plain, batch
                )
            if diverged is not None and config.terminate_on_nan:
                break
    return curve, diverged


def save_weights(model: nn.Module, run_dir: Path) -> Path:
    """Write the plain model's state dict, on the CPU, to `weights.pt`, and return the file's path.

    `torch.load(…, weights_only=True)` reads it.
    """
    path = run_dir / WEIGHTS_FILE
    torch.save(
        {name: value.cpu() for name, value in model.state_dict().items()}, path.with_suffix(".new")
    )
    path.with_suffix(".new").replace(path)
    return path


def _techniques(session: Session, calls_before: Counter[tuple[str, str]]) -> dict[str, str]:
    """Return what the accelerated backend did, or why it did not; empty for the baseline."""
    done = session.techniques
    if not session.config.compiler_opt:
        return done
    reason = usage.reason_not_used(session.loader.device)
    if not session.config.kernels:
        reason = "switched off (--no-kernels)"
    ran = call_counts.summary(since=calls_before)  # of this process, evaluation included
    return {
        **done,
        "optimizer": optim.kind(session.optimizer),
        "kernels": ran or f"not used, {reason or 'nothing in this run calls for one'}",
    }


def _data_facts(session: Session) -> dict[str, Any]:
    """Return what the results say about the data.

    The facts are the number of items, the size of one, what the data sets leave out, and the number
    of outputs of a head that follows the data.
    """
    splits: Any = session.splits
    facts: dict[str, Any] = {
        "train": len(splits.train),
        "held_out": len(splits.held_out),
        "notices": splits.notices(),
    }
    facts |= {"input": size} if (size := session.task.input_size(session.config)) else {}
    head, classes = session.task.head, getattr(splits.train, "classes", None)
    if head is not None and classes is not None:
        facts |= {"classes": len(classes), "outputs": head.outputs}
    return facts


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _end_of_run(run_dir: Path, reason: str, silent: list[int]) -> None:
    """End this process and the silent ones, which would not hear a request.

    The reason is written to the run's folder, where the launcher reads it.
    """
    with contextlib.suppress(OSError):  # a full disk
        ErrorReport(process_group.rank(), SilentRank.__name__, reason).write(run_dir)
        print(reason, file=sys.stderr, flush=True)
    for number in silent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    os._exit(SilentRank.exit_code)


def train(
    config: TrainConfig,
    observer: Observer | None = None,
    recipe: Recipe | None = None,
    *,
    own_operators_on_cpu: bool = False,
) -> Results:
    """Run `config` in this process (one of several under torchrun) and write its run directory.

    Rank 0 writes the results to `results.json`, last.

    Args:
        config: the run's options.
        observer: hooks into the run.
        recipe: makes the model ready to train; by default `accelerate()`, as the options ask.
        own_operators_on_cpu: let a run on the CPU use the operators that kernels carry out on CUDA,
            in plain torch. This is slower, and for tests.

    Returns:
        What was measured.

    Raises:
        InputError: for bad options or data, before anything is trained.
        Diverged: when the loss is no finite number any more and `terminate_on_nan` is on, after the
            results are written.
    """
    with (
        switches.of_run(config),
        usage.on_cpu_too() if own_operators_on_cpu else contextlib.nullcontext(),
    ):
        return _train(config, observer or Observer(), recipe or Recipe())


def _train(config: TrainConfig, observer: Observer, recipe: Recipe) -> Results:
    calls_before = call_counts.counts()
    launched_at = float(os.environ.get(LAUNCHED_AT_VARIABLE) or began_at())
    watch: Heartbeat | None = None
    try:
        process_group.ensure_initialized()
        config = resolve(config)
        if process_group.world_size() > 1:
            watch = Heartbeat(
                "run",
                config.rank_timeout,
                functools.partial(_end_of_run, Path(config.run_dir or "")),
            )
        phases = PhaseLog(Path(config.run_dir or ""), enabled=process_group.rank() == 0)
        with compilations.observed(
            phases.compilation_began, phases.build_began, phases.compilation_ended
        ):
            session = _open(config, phases, observer, recipe)
        total_steps = config.max_steps or len(session.loader) * (config.epochs or 1)
        if config.max_steps and config.epochs:
            total_steps = min(config.max_steps, len(session.loader) * config.epochs)
        config = dataclasses.replace(config, max_steps=total_steps)
        assert config.batch_size is not None and config.run_dir is not None
        warmup = min(config.warmup_steps, total_steps - 1)
        session.log.parameters(options.to_mapping(config))
        if said := precision.notice(
            session.autocast_dtype, session.loader.device.type, accelerated=config.compiler_opt
        ):
            session.log.say(said)
        data = _data_facts(session)
        if process_group.rank() == 0:
            for line in data_lines(data):
                session.log.say(f"data  {line}")
        session.model.train()
        ready_seconds = now() - launched_at
        with compilations.observed(
            phases.compilation_began, phases.build_began, phases.compilation_ended
        ):
            curve, diverged = _run_steps(session, warmup, total_steps, observer)
        broken_off = diverged is not None and config.terminate_on_nan
        total_steps = len(curve)
        warmup = min(warmup, total_steps - 1)
        durations = session.clock.read()
        trained_seconds = ready_seconds + sum(durations)
        observer.after_training(session)
        if config.evaluate and not broken_off:
            phases.begin(EVALUATION)
        metrics = evaluate(session) if config.evaluate and not broken_off else {}
        phases.begin(ENDING)
        if metrics:
            session.log.metrics(metrics, total_steps)
        step_seconds = stats.percentiles(durations[warmup:])
        first_steps_excess = max(0.0, sum(durations[:warmup]) - warmup * step_seconds["p50"])
        world_size = process_group.world_size()
        done = _techniques(session, calls_before)
        results = Results(
            task=config.model,
            config=options.to_mapping(config),
            environment=hardware.environment(),
            world_size=world_size,
            nodes=world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            steps=total_steps,
            warmup_steps=warmup,
            loss={
                "first": _finite(curve[0][1]),
                "last": _finite(curve[-1][1]),
                "curve": [[s, _finite(v)] for s, v in curve],
            },
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            step_seconds=step_seconds,
            samples_per_second={
                "per_device": config.batch_size / step_seconds["p50"],
                "global": config.batch_size * world_size / step_seconds["p50"],
                "whole_run": config.batch_size * world_size * total_steps / trained_seconds,
            },
            startup_seconds={
                "total": ready_seconds + first_steps_excess,
                "compile": first_steps_excess if "compiler" in done else 0.0,
            },
            peak_memory_bytes=peak_memory_bytes(session.loader.device.type),
            page_faults=stats.percentiles(session.clock.page_faults[warmup:])["p50"],
            phase_seconds={
                **session.clock.usual_phases(warmup),
                **exposed_communication(session.model),
            },
            skipped_steps=session.updates.skipped_steps(),
            techniques=done,
            data=data,
            diverged_at=diverged.as_json() if diverged else None,
            status="diverged" if broken_off else "finished",
        )
        if process_group.rank() == 0:
            if config.save_weights:
                save_weights(session.plain, Path(config.run_dir))
            write_results(Path(config.run_dir), results)
        session.log.close()
        if results.diverged_at is not None and broken_off:
            # The first rank that fails has the others ended, and rank 0 has to write first.
            process_group.all_ranks(None)
            raise Diverged(
                f"{divergence.in_words(results.diverged_at)}, so the run has been ended. "
                f"{config.run_dir}/results.json has what was "
                "measured until then. A smaller lr may help; --no-terminate-on-nan trains on in "
                "any case"
            )
        return results
    finally:
        if watch is not None:
            watch.stop()
        process_group.leave()
