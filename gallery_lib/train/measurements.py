"""Measurements of a run that has ended, and where its loss was first no finite number."""

from __future__ import annotations

import dataclasses
import math
import os
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gallery_lib import optim, stats
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import exposed_communication
from gallery_lib.compiler import recompiles
from gallery_lib.kernels.runtime import operators, usage
from gallery_lib.system import hardware
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.train.results import Results
from gallery_lib.train.session import Session
from gallery_lib.tune import choice


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


def peak_memory_bytes(device_type: str) -> dict[str, int | None]:
    """Return the highest memory use of this process so far, on the host and on its device."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "host": host,
        "device": torch.cuda.max_memory_allocated() if device_type == "cuda" else None,
    }


def data_facts(session: Session) -> dict[str, Any]:
    """Return number and size of items, what the data sets leave out, and classes and outputs."""
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


def techniques(session: Session, calls_before: Counter[tuple[str, str]]) -> dict[str, str]:
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


def results_of(
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
    sustained = clock.sustained(warmup, config.workers * ready)
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
        peak_memory_bytes=peak_memory_bytes(session.loader.device.type),
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
        tuning=choice.explanation(session.plain),
    )
