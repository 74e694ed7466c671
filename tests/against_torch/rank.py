"""One process of one side of a case, which trains and records all that the other side must match.

A real torchrun starts it as `python -m …against_torch.rank CASE SIDE FOLDER`. The fork server
imports this file: it has all that a case needs, and starts no thread.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
import torch.distributed as dist
import torch.nn.parallel
import torch.optim.swa_utils
from torch import nn

from gallery_lib.comm.accelerate_ddp import step_in_backward
from gallery_lib.errors import InputError

from . import by_hand, launches, loaders, planted, product
from .case import Case
from .loops import LOOPS, RARE, Run
from .models import CALLS, MODELS
from .optimizers import SCHEDULERS, optimizer_of


def train(case: Case, side: str, rank: int, folder: Path, record: dict[str, Any]) -> None:
    """Run a case on one rank of one side, and fill its record."""
    world = launches.LAUNCHES[case.launch].world
    torch.set_num_threads(1)
    CALLS.clear()
    # The product's ranks start with different weights, and rank 0's are the run's.
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(case.seed + (rank if side == "product" else 0))
    model = MODELS[case.model].build()
    if side == "product":
        made = product.accelerated(case, model, loaders.build(case), loaders.validation(case))
        model, loader, validation, optimizer, scheduler, record["objections"] = made
        ready, more = (lambda _: None), functools.partial(product.accelerate_more, case)
    else:
        loader, validation = _plain_loaders(case, rank, world, folder)
        if side == "compiled":
            model.compile(backend=product.COMPILED[case.config])
        if world > 1:
            by_hand.share(model)
        optimizer = optimizer_of(case.optimizer, model)
        scheduler = SCHEDULERS[case.scheduler](optimizer)
        ready, more = (by_hand.average if world > 1 else lambda _: None), lambda *parts: parts
    launches.make_group("after", case.launch, side, rank, folder / f"meet-{side}")
    parts = (model, loader, validation, optimizer, scheduler)
    run = Run(case, rank, world, *parts, ready, more, record)
    if case.call.startswith("early") and side == "product":
        run.early = functools.partial(step_in_backward, model)
    with planted.planted(case.planted if side == "product" else "", run):
        {**LOOPS, **RARE}[case.loop](run)
        _close(run, model.module if product.by_user(case) and side == "product" else model)
    record["outcome"] = "ran"


def _plain_loaders(case: Case, rank: int, world: int, folder: Path) -> tuple[Any, Any]:
    """Return a user's loaders.

    On several processes they yield the samples that the product's rank has seen.
    """
    if world == 1:
        return loaders.build(case), loaders.validation(case)
    seen = read(folder, "product", rank)
    samples, length = seen["samples"], seen["length"]
    train = samples.get("train", [])
    if measured := samples.get("measured"):  # a pass of the same loader after each epoch
        train = [one for pair in zip(train, measured, strict=True) for one in pair]
    passes = {"train": train, "validation": samples.get("validation", [])}
    train, validation = (
        loaders.Replay(case, name, epochs, length.get(name)) for name, epochs in passes.items()
    )
    return train, validation


def _close(run: Run, model: nn.Module) -> None:
    """Record what is left when training has ended."""

    record = run.record
    # The product takes torch.compile's wrapper off, so its prefix is no part of the comparison.
    model = getattr(model, "_orig_mod", model)
    state, optimizer = model.state_dict(), run.optimizer.state_dict()
    parameters = dict(model.named_parameters())
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
    values = {"state": tensors, "parameters": parameters, "gradients": gradients}
    if run.case.call.startswith("early"):
        values["gradients"] = {}  # those that have been used are dropped
    for name, named in {**values, "buffers": dict(model.named_buffers())}.items():
        record[name] = {key: value.detach().clone() for key, value in named.items()}
    kept = ("foreach", "fused")  # which implementation runs is the product's choice
    groups = optimizer["param_groups"]
    record |= {
        "keys": list(state),
        "trained": {name: p.requires_grad for name, p in parameters.items()},
        "modules": [name for name, _ in model.named_modules()],
        "calls": dict(CALLS),
        "optimizer_state": {n: state for n, state in optimizer["state"].items() if state},
        "groups": [{k: v for k, v in group.items() if k not in kept} for group in groups],
        "schedule": None if run.scheduler is None else run.scheduler.last_epoch,
        "training": model.training,
        "random": torch.get_rng_state(),
    }


def read(folder: Path, side: str, rank: int) -> dict[str, Any]:
    """Return the record that a rank has written."""
    return torch.load(folder / f"{side}-{rank}.pt", weights_only=False)


def write(text: str, side: str, rank: int, folder_name: str) -> dict[str, Any]:
    """Run one rank, and write and return its record; an exception becomes a record, too."""
    case, folder = Case.of(text), Path(folder_name)
    record: dict[str, Any] = {name: {} for name in ("samples", "complete", "length")}
    record |= {name: [] for name in ("batches", "losses", "rates", "extra", "objections")}
    try:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            launches.make_group("before", case.launch, side, rank, folder / f"meet-{side}")
            train(case, side, rank, folder, record)
    except InputError as error:
        record |= {"outcome": "refused", "message": str(error)}
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        record |= {"outcome": "raised", "message": message, "trace": traceback.format_exc()}
    torch.save(record, folder / f"{side}-{rank}.part")
    (folder / f"{side}-{rank}.part").replace(folder / f"{side}-{rank}.pt")
    return record


def main(rank: int, text: str, side: str, folder_name: str) -> None:
    """Run one rank in a process of its own, and end that."""
    record = write(text, side, rank, folder_name)
    if dist.is_initialized() and record["outcome"] == "ran":
        with contextlib.suppress(Exception):
            dist.barrier()
    # Threads and groups of a training that has failed may wait for ranks that are gone. Nothing
    # here needs them.
    os._exit(0 if record["outcome"] == "ran" else 3)


if __name__ == "__main__":
    main(int(os.environ["RANK"]), *sys.argv[1:])
