"""One training run: `train(config) -> Results`, for the command line, notebooks and measurements.

The loop is plain: data, `accelerate()`, forward and loss under autocast, backward, optimizer. The
baseline and the accelerated backend go through the same lines. They differ in what `accelerate()`
is asked to do, and in whether our own kernels are used (`kernels/runtime/usage.py`). Kernels serve
the loss, the loader, and here the optimizer and the scaler. With more than one process, as
torchrun's variables say, DistributedDataParallel averages the gradients.

This module does not start processes (launcher/) and does not compare (measure/). A measurement may
also have another library make the model ready (session.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gallery_lib import optim, stats
from gallery_lib.checkpoint.training import Notice
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import exposed_communication
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.compiler import backend, recompiles
from gallery_lib.config import Loader, TrainConfig, switches
from gallery_lib.console.exit_code import refusal
from gallery_lib.console.progress import ENDING, EVALUATION, TRAINING, WARM_UP, PhaseLog
from gallery_lib.data.loading import workers
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import Diverged, RunFailed
from gallery_lib.kernels.runtime import operators, usage
from gallery_lib.system import gpu, hardware, paths
from gallery_lib.system.machine_load import MachineLoad, Watch
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE, LAUNCHED_AT_VARIABLE, began_at, now
from gallery_lib.train import precision
from gallery_lib.train.checkpoints import RunCheckpoints, Trained, choose
from gallery_lib.train.failure import end_of_run
from gallery_lib.train.resolved import ResolvedConfig, resolve
from gallery_lib.train.results import Results, data_lines, last_step, write_results
from gallery_lib.train.session import Observer, Recipe, Session, items_per_batch, open_session
from gallery_lib.tune import choice


def train(
    config: TrainConfig,
    observer: Observer | None = None,
    recipe: Recipe | None = None,
) -> Results:
    """Run `config` in this process (one of several under torchrun) and write its run directory.

    Rank 0 writes the results to `results.json`, last.

    Args:
        config: the run's options; a ResolvedConfig is used as it is.
        observer: hooks into the run.
        recipe: makes the model ready to train; by default `accelerate()`, as the options ask.

    Returns:
        What was measured.

    Raises:
        InputError: for bad options or data, before anything is trained.
        Diverged: when the loss is not finite any more and `terminate_on_nan` is on, at the end.
    """
    with switches.of_run(config.compiler_opt, config.kernels):
        return _train(config, observer or Observer(), recipe or Recipe())


def _train(config: TrainConfig, observer: Observer, recipe: Recipe) -> Results:
    calls_before = operators.counts()
    launched_at = float(os.environ.get(LAUNCHED_AT_VARIABLE) or began_at())
    with contextlib.ExitStack() as ends:
        ends.callback(process_group.leave)
        process_group.ensure_initialized()
        config = _resolved(config)
        watch = None
        if process_group.rank() == 0 and not observer.takes_turns:
            # What started several ranks is above all of this host.
            watch = Watch(os.getppid() if process_group.world_size() > 1 else None)
        if process_group.world_size() > 1:
            silence = functools.partial(end_of_run, Path(config.run_dir), process_group.rank())
            heartbeat = Heartbeat("run", config.rank_timeout, silence)
            ends.callback(heartbeat.leave if _waits_for_others() else heartbeat.stop)
        notice = Notice(Path(config.run_dir), int(os.environ.get(HEARS_NOTICE_VARIABLE, "0")))
        if config.checkpoint_every is not None:  # without checkpoints signals end the run as ever
            ends.enter_context(notice.listening())
        saved, logged_steps = choose(config), last_step(config.run_dir)
        phases = PhaseLog(Path(config.run_dir), enabled=process_group.rank() == 0)
        compiling = (phases.compilation_began, phases.build_began, phases.compilation_ended)
        shown = functools.partial(backend.observed, *compiling)
        with shown():
            session = open_session(
                config,
                phases,
                observer,
                recipe,
                earlier=saved.content["run"]["log"] if saved else None,
            )
        session.log.parameters(dataclasses.asdict(session.config))
        data = _data_facts(session)
        weights = session.started_from.lines() if session.started_from else []
        for what, lines in (("data", data_lines(data)), ("weights", weights)):
            for line in lines:
                session.log.say(f"{what}  {line}")
        session.model.train()
        checkpoints = RunCheckpoints(session, config, notice)
        ready_seconds = now() - launched_at
        with shown():
            trained = checkpoints.begin(saved, logged_steps)
            del saved  # a copy of weights and optimizer states
            _run_steps(session, observer, trained, checkpoints, watch)
        checkpoints.close()
        observer.after_training(session)
        metrics: dict[str, float] = {}
        if config.evaluate and not trained.broken_off:
            phases.begin(EVALUATION)
            metrics = evaluate(session)
        phases.begin(ENDING)
        if metrics:
            session.log.metrics(metrics)
        results = _results_of(
            session,
            trained,
            metrics=metrics,
            data=data,
            techniques=_techniques_of(session, calls_before),
            ready_seconds=ready_seconds,
            load=watch.seen() if watch else None,
        )
        _write(session, results, trained)
        return results


def _waits_for_others() -> bool:
    """Return whether torchrun has forked this rank, which then stays until all have ended."""
    return multiprocessing.parent_process() is not None and "TORCHELASTIC_RUN_ID" in os.environ


def _resolved(config: TrainConfig) -> ResolvedConfig:
    """Return the options with nothing left open, in rank 0's precision. A collective call."""
    if not isinstance(config, ResolvedConfig):
        config = resolve(
            config,
            local_processes=process_group.local_processes(),
            run_dir=config.run_dir
            or process_group.from_rank_0(str(paths.new_run_dir(config.model.rsplit(":", 1)[-1]))),
        )
    # `auto` may be another level on another host.
    return dataclasses.replace(config, amp_level=process_group.from_rank_0(config.amp_level))


def _run_steps(
    session: Session,
    observer: Observer,
    trained: Trained,
    checkpoints: RunCheckpoints,
    watch: Watch | None,
) -> None:
    """Train, log every `log_interval` steps, and save checkpoints where they are due.

    Raises:
        GoOnLater: the run was told to end, and has saved a checkpoint.
    """
    config, clock, phases = session.config, session.clock, session.phases
    total_steps, done = config.max_steps, len(trained.curve)
    assert total_steps is not None
    warmup = min(config.warmup_steps, total_steps - 1)
    settled = max(warmup, done + 1)  # a resumed run tries kernels and compiles again
    if done < warmup:
        phases.begin(WARM_UP)
    else:
        phases.begin(TRAINING, count=done, total=total_steps)
        if watch is not None:
            watch.at_pause()
    clock.start()
    for step, batch in _batches(session, trained, total_steps):
        clock.phase_done("input")
        observer.before_step(session, step, batch)
        session.step(batch)
        if step + 1 == warmup:  # the last step that does not count begins the next phase
            phases.begin(TRAINING, count=warmup, total=total_steps)
        if step + 1 == settled < total_steps:
            session.forget_peak_memory()
        clock.step_done()
        save, end = checkpoints.due(step + 1)
        if save or (step + 1) % config.log_interval == 0 or step + 1 == total_steps:
            _log(session, trained, step + 1)
            if trained.diverged is not None and config.terminate_on_nan:
                trained.broken_off = True
                break
        if save and trained.diverged is None:
            checkpoints.save_run(trained)
        if step + 1 == warmup and watch is not None:
            clock.pause()
            watch.at_pause()
            clock.resume()
        if end and step + 1 < total_steps:
            error = checkpoints.end_early()
            process_group.all_ranks(None)  # the first rank that ends has the others ended
            raise error
    trained.step_seconds = clock.read()
    if watch is not None:
        watch.at_pause()


def _batches(session: Session, trained: Trained, total_steps: int) -> Iterator[tuple[int, Any]]:
    """Yield (step, batch), epoch after epoch, until the last step."""
    step = len(trained.curve)
    while step < total_steps:
        session.loader.set_epoch(session.loader.passes)
        for batch in _in_time(session, session.loader):
            yield step, batch
            step += 1
            if step == total_steps:
                return
        trained.epoch += 1


def _in_time(session: Session, batches: Iterable[Any]) -> Iterator[Any]:
    """Return the batches; where one of loading processes is late, this process ends at once."""
    config, rank = session.config, process_group.rank()
    if not config.workers:
        return iter(batches)

    def late(text: str) -> None:
        end_of_run(Path(config.run_dir), rank, f"rank {rank}: {text}")

    # On CUDA a pass begins with as many batches as are copied ahead, and one more.
    at_once = 1 + Loader().prefetch if session.loader.device.type == "cuda" else 1
    return workers.watched(batches, config.rank_timeout * at_once, late)


def _log(session: Session, trained: Trained, steps: int) -> None:
    """Log the steps since the last call, extend the loss curve, and look for divergence."""
    since = len(trained.curve)
    step_seconds = session.clock.read()[since:]
    own = session.losses[since:]
    sums = process_group.sum_over_ranks(torch.stack([loss.double() for loss in own]))
    losses = (sums / process_group.world_size()).tolist()
    trained.curve += [[since + i + 1, loss] for i, loss in enumerate(losses)]
    memory = _peak_memory_bytes(session.loader.device.type)
    session.log.step(
        epoch=trained.epoch,
        step=steps,
        batch_size=session.config.batch_size,
        loss=losses[-1],
        learning_rate=session.learning_rate,
        step_seconds=step_seconds,
        warmup=session.config.warmup_steps,
        world_size=process_group.world_size(),
        peak_memory_bytes=memory["device"] or memory["host"] or 0,
    )
    if trained.diverged is None:
        trained.diverged = divergence(losses, own, since + 1)


def divergence(
    means: Sequence[float], own: Sequence[Tensor], first_step: int
) -> dict[str, int] | None:
    """Return step and rank at which a loss was first no finite number, or None.

    A collective call if there is one.

    Args:
        means: losses of consecutive steps, averaged over ranks.
        own: this rank's losses of the same steps, scalars.
        first_step: number of the first of these steps, from 1.
    """
    place = next((place for place, loss in enumerate(means) if not math.isfinite(loss)), None)
    if place is None:
        return None
    finite = process_group.all_ranks(bool(own[place].isfinite()))
    return {"step": first_step + place, "rank": finite.index(False) if False in finite else 0}


def _write(session: Session, results: Results, trained: Trained) -> None:
    """Write the run's files, results last; raise Diverged where training was broken off."""
    config = session.config
    if process_group.rank() == 0:
        try:
            write_results(Path(config.run_dir), results)
        except OSError as error:
            raise RunFailed(
                "the training is done, but its results could not be written and are lost: "
                f"{refusal(error)}"
            ) from None
    session.log.close()
    if trained.broken_off:
        # The first rank that fails has the others ended, and rank 0 has to write first.
        process_group.all_ranks(None)
        at = trained.diverged or {}
        raise Diverged(
            f"its loss is no finite number from step {at['step']} on rank {at['rank']} on, so the "
            f"run has been ended. {config.run_dir}/results.json has what was measured until then. "
            "A smaller lr may help; --no-terminate-on-nan trains on in any case"
        )


# --------------------------------------------------------------------------------------------------
# Held-out metrics of a trained model.


def evaluate(session: Session) -> dict[str, float]:
    """Return the held-out metrics, each sample once.

    Evaluation runs eagerly, since it is not what is being compiled.
    """
    model, data = session.plain, cast(Any, session.splits.held_out)
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=items_per_batch(session.config, session.task),
        sampler=range(process_group.rank(), len(data), process_group.world_size()),
        num_workers=session.config.workers,
        collate_fn=getattr(data, "collate", None),
        worker_init_fn=workers.begin,
    )
    device, memory_format = session.loader.device, session.loader.memory_format
    batches = DeviceLoader(loader, device, memory_format, shard=False)
    sums: dict[str, Any] = {}
    model.eval()
    with (
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        precision.autocast(session.autocast_dtype, device.type),
    ):
        for batch in _in_time(session, batches):
            for name, (total, count) in session.task.metrics(model, batch).items():
                counted = torch.tensor(float(count), device=device, dtype=torch.float64)
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + total.double(), before[1] + counted)
    model.train()
    means = {
        name: process_group.sum_over_ranks(total) / process_group.sum_over_ranks(count)
        for name, (total, count) in sums.items()
    }
    if session.task.summary:
        return session.task.summary(means)
    return {name: float(mean) for name, mean in means.items()}


# --------------------------------------------------------------------------------------------------
# What was measured in a run that has ended.


def _peak_memory_bytes(device_type: str) -> dict[str, int | None]:
    """Return the highest memory use of this process so far, as `Results` has it."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device_type != "cuda":
        return {"host": host, "device": None}
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {"host": host, "device": allocated, "device_reserved": reserved}


def _data_facts(session: Session) -> dict[str, Any]:
    """Return number and size of items, what the data sets leave out, and classes and outputs."""
    splits: Any = session.splits
    facts: dict[str, Any] = {
        "train": len(splits.train),
        "held_out": len(splits.held_out),
        "notices": splits.notices(),
    }
    config = session.config
    if size := session.task.input_size(config.image_size, config.sequence_length):
        facts["input"] = size
    head, classes = session.task.head, getattr(splits.train, "classes", None)
    if head is not None and classes is not None:
        facts |= {"classes": len(classes), "outputs": head.outputs}
    return facts


def _techniques_of(session: Session, calls_before: Counter[tuple[str, str]]) -> dict[str, str]:
    """Return what the accelerated backend did, or why it did not; empty for the baseline.

    `calls_before` counts the calls of own kernels in this process before the run.
    """
    if not session.config.compiler_opt:
        return session.techniques
    reason = usage.reason_not_used(session.loader.device)
    if not session.config.kernels:
        reason = "switched off (--no-kernels)"
    ran = operators.summary(since=calls_before)  # of this process, evaluation included
    again = recompiles.summary()
    return {
        **session.techniques,
        **({"recompilations": again} if again else {}),
        "optimizer": optim.kind(session.optimizer),
        "kernels": ran or f"not used, {reason or 'nothing in this run calls for one'}",
    }


def _results_of(
    session: Session,
    trained: Trained,
    *,
    metrics: dict[str, float],
    data: dict[str, Any],
    techniques: dict[str, str],
    ready_seconds: float,
    load: MachineLoad | None,
) -> Results:
    """Return the results of a run.

    `ready_seconds` is the time from launch to the first step. `load` says what else wanted the
    machine; None: not looked at.
    """
    config, clock, durations = session.config, session.clock, trained.step_seconds
    steps = len(trained.curve)
    warmup = min(config.warmup_steps, steps - 1)
    step_seconds = stats.percentiles(durations[warmup:])
    first_steps_excess = max(0.0, sum(durations[:warmup]) - warmup * step_seconds["p50"])
    world_size = process_group.world_size()
    whole_batch = config.batch_size * world_size
    ready = int(getattr(session.loader, "prefetch_factor", None) or 2)  # batches of a worker
    ahead = Loader().prefetch if clock.cuda else 0  # batches on the device
    sustained = clock.sustained(warmup, config.workers * ready + ahead)
    rates = {
        "per_device": config.batch_size / step_seconds["p50"],
        "global": whole_batch / step_seconds["p50"],
        "whole_run": whole_batch * steps / (ready_seconds + sum(durations)),
    }
    if "step_seconds" in sustained:
        rates["sustained"] = whole_batch / sustained["step_seconds"]
    curve = [[step, loss if math.isfinite(loss) else None] for step, loss in trained.curve]
    return Results(
        task=config.model,
        config=dataclasses.asdict(config),
        environment=hardware.machine_facts(),
        world_size=world_size,
        nodes=world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        steps=steps,
        warmup_steps=warmup,
        loss={"first": curve[0][1], "last": curve[-1][1], "curve": curve},
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        step_seconds=step_seconds,
        samples_per_second=rates,
        sustained=sustained,
        startup_seconds={
            "total": ready_seconds + first_steps_excess,
            "compile": first_steps_excess if "compiler" in techniques else 0.0,
        },
        peak_memory_bytes=_peak_memory_bytes(session.loader.device.type),
        page_faults=stats.percentiles(clock.page_faults[warmup:])["p50"],
        phase_seconds={**clock.usual_phases(warmup), **exposed_communication(session.model)},
        skipped_steps=session.updates.skipped_steps(),
        techniques=techniques,
        data=data,
        started_from=dataclasses.asdict(session.started_from) if session.started_from else {},
        diverged_at=trained.diverged,
        interruptions=trained.interruptions,
        status="diverged" if trained.broken_off else "finished",
        load=load,
        gpu=gpu.at_work(clock.looks),
        tuning=choice.explanation(session.plain),
    )
