"""What users do with a DistributedDataParallel, the same while ways of averaging take turns."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import tuner
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.config import Comm
from on_ranks.models import (
    DDP,
    STEPS,
    WAYS,
    batch,
    both_outcomes,
    equal,
    options_of,
    pair,
    stack,
    train_step,
)


def hooks() -> dict[str, Any]:
    """Return the calls of every kind of hook, and attributes, after all turns.

    There is one value for plain DDP, and one for a model whose ways took turns.
    """

    def change(model: DDP) -> None:
        model.calls = {}  # type: ignore[assignment]

        def count(name: str) -> Callable[..., None]:
            def called(*_: Any) -> None:
                model.calls[name] = model.calls.get(name, 0) + 1

            return called

        forward = model.forward
        model.forward = lambda *inputs: (count("own forward")(), forward(*inputs))[1]  # type: ignore[method-assign]
        model.register_forward_pre_hook(count("pre"))
        model.register_forward_hook(count("forward"))
        model.register_full_backward_hook(count("backward"))
        model._register_state_dict_hook(count("state dict"))
        model._register_buffer_comm_hook(None, count("buffers"))
        model.mine = "kept"  # type: ignore[assignment]

    def seen(model: DDP) -> Any:
        model.state_dict()
        views, hooks = model.gradient_as_bucket_view, len(model._comm_hooks)
        return model.calls, model.mine, model.training, views, hooks

    return both_outcomes(change, seen)


def own_hook(when: int, builtin: bool) -> dict[str, Any]:
    """Compare trainings with a user's communication hook, registered before step `when`.

    The hook halves what is sent.
    """

    def change(model: DDP) -> Any:
        def at(step: int) -> None:
            if step == when and builtin:
                model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            elif step == when:
                model.register_comm_hook(None, default_hooks.fp16_compress_hook)

        at(-1)
        return at

    return both_outcomes(
        change, lambda model: (len(model._comm_hooks), gradient_reducer(model) is None)
    )


def copies() -> bool:
    """Return whether deep copies and pickles train as those of plain DDP, and the model goes on.

    Copies are made before, during and after the turns.
    """
    exact = True
    models, _ = pair()
    for step in range(STEPS + 4):
        if step in (0, 1, STEPS // 2, STEPS - 1, STEPS + 2):
            for kind in (copy.deepcopy, _pickled):
                copied = [kind(model) for model in models]
                for each in copied:
                    for later in range(3):
                        each(batch(later, 6)).pow(2).sum().backward()
                exact &= equal(*copied, gradients=True) and gradient_reducer(copied[1]) is None
                exact &= copied[1].gradient_as_bucket_view is False
        train_step(models, step)
        exact &= equal(*models)
    return exact


def _pickled(model: DDP) -> DDP:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


HABITS = (
    "two forwards",
    "accumulation",
    "evaluation",
    "one rank looks at more",
    "a step fails",
    "a forward pass fails on one rank",
    "frozen",
)
"""Habits that are had in turn, one a step."""


def habits(which: str) -> dict[str, Any]:
    """Return the first steps whose weights are not those of plain DDP, with unusual habits.

    Ways of averaging take turns meanwhile.
    """
    models, turns = pair()
    assert turns is not None
    run: list[Any] = [
        torch.compile(model, backend="eager") if which == "compiled" else model for model in models
    ]
    wrong, rank = [], dist.get_rank()

    def loss(model: nn.Module, step: int) -> Tensor:
        habit = HABITS[step % len(HABITS)] if which == "in turn" else which
        if habit == "two forwards":
            return model(batch(step, 6)).pow(2).sum() + model(batch(100 + step, 6)).sum()
        if habit == "accumulation":
            with model.no_sync():
                model(batch(100 + step, 6)).pow(2).sum().backward()
        if habit == "one rank looks at more, and all meet" and step > 1 and step % 4 > 0:
            model.eval()
            if rank == 0:
                model(batch(step, 6))
            dist.barrier()
            model.train()
        if habit == "evaluation":
            model.eval()
            with torch.no_grad():
                model(batch(step, 6))
            model.train()
        if habit == "one rank looks at more" and rank == 0:
            model(batch(step, 6))
        if habit == "a step fails":
            with contextlib.suppress(ZeroDivisionError):
                model(batch(step, 6))
                raise ZeroDivisionError
        if habit == "a forward pass fails on one rank" and rank == 1:
            with contextlib.suppress(RuntimeError):
                model(torch.ones(2, 3))
        if habit == "frozen":
            # Plain DDP does not hear of this; it averages again once the weight is unfrozen.
            model.module[0].weight.requires_grad_(False)
            model.module[0].weight.requires_grad_(True)
        return model(batch(step, 6)).pow(2).sum()

    for step in range(STEPS + 4):
        if which == "joined" and step % 7 == 3:
            for model in models:
                with model.join():
                    train_step([model], step)
        train_step(run, step, loss)
        if not equal(*models):
            wrong.append(step)
    # After join() DDP takes itself for joined, and turns wait.
    return {"wrong": wrong[:3], "chosen": turns.choice in WAYS or which == "joined"}


def a_rank_that_does_not_come() -> dict[str, Any]:
    """Return whether training stays exact when rank 0 waits in vain for the others to change turns.

    Rank 0 looks at more in training mode, and then all ranks meet. Tuning ends there.
    """
    exact = True
    with mock.patch.object(tuner, "_MEETING_SECONDS", 1.0):
        models, turns = pair()
        for step in range(12):
            train_step(models, step)
            for model in models:
                # After the first step plain DDP would hang as well.
                if dist.get_rank() == 0 and step > 0:
                    model(batch(step, 6))
                dist.barrier()
            exact &= equal(*models)
    assert turns is not None
    return {"exact": exact, "chosen": turns.choice}


def frozen_at_a_rebuild() -> bool:
    """Return whether a layer's gradients are plain DDP's when it is frozen while a way begins.

    The layer is unfrozen later, and plain DDP goes on to average it. The user holds the reducers
    that were replaced.
    """
    models, _ = pair(tune=False)
    exact, held = True, [models[1].reducer]
    for values in ({"streams": 2}, {}, {"bucket_views": True}, {}):
        for model in models:
            model.module[0].requires_grad_(False)
        accelerate_ddp(models[1], options_of(values))
        held.append(models[1].reducer)
        exact &= not models[1].module[0].weight.requires_grad
        for model in models:
            model.module[0].requires_grad_(True)
        for step in range(3):
            train_step(models, step)
            exact &= equal(*models)
    return exact


def deleted() -> list[int]:
    """Return the threads before, with, and after three models that have two streams each.

    The three are deleted, and a fourth goes on.
    """
    last = accelerate_ddp(DDP(stack([6, 9, 4])), Comm(streams=2))
    counts = [threading.active_count()]
    models = [accelerate_ddp(DDP(stack([6, 9, 4])), Comm(streams=2)) for _ in range(3)]
    train_step([*models, last], 0)
    counts.append(threading.active_count())
    del models
    gc.collect()
    threading.Event().wait(2.5)
    counts.append(threading.active_count())
    train_step([last], 1)
    accelerate_ddp(last, Comm())
    return counts


def replaced() -> list[int]:
    """Return how many of our communication hooks are alive after many changes of way.

    The second value is for the model back at DDP's own way.
    """
    before = _alive()
    model, counts = DDP(stack([6, 9, 4])), []
    for views in (True, False, True, False):
        accelerate_ddp(model, Comm(streams=2, bucket_views=views))
        train_step([model], 0)
        train_step([model], 1)
    counts.append(_alive() - before)
    accelerate_ddp(model, Comm())
    train_step([model], 0)
    return [*counts, _alive() - before]


def _alive() -> int:
    gc.collect()
    return sum(isinstance(thing, GradientReducer) for thing in gc.get_objects())
