"""Hypothesis strategies that draw cases which plain PyTorch can train."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from . import launches, loops, product
from .batches import BATCHES
from .case import Case
from .loaders import LOADERS
from .models import MODELS
from .optimizers import OPTIMIZERS, SCHEDULERS

CONFIGS = ("plain",) * 8 + ("eager",) * 8 + ("contiguous",) * 2 + ("aot",) * 4 + ("inductor",)
"""Names of configurations, repeated by the share in which they are drawn."""
SPECIAL = ("double", "several_dtypes", "complex", "tied", "shared", "hooks", "batch_norm")
MODEL_SHARES = (*MODELS, *SPECIAL * 3)
"""Names of models; those that alone show a kind of fault are repeated to be drawn more often."""
LAUNCHES = tuple(name for name, launch in launches.LAUNCHES.items() for _ in range(launch.share))


def valid(case: Case) -> bool:
    """Return whether plain PyTorch supports such a training, and the product such a call."""
    model, loader, launch = MODELS[case.model], LOADERS[case.loader], launches.LAUNCHES[case.launch]
    several = launch.world > 1
    return all(
        (
            not (loader.one_process and several),
            not (loader.only_list and case.batch != "list"),
            not (loader.endless and case.loop == "peek"),
            not model.optimizers or case.optimizer in model.optimizers,
            (case.optimizer == "sparse_adam") <= (case.model == "sparse"),
            (case.optimizer == "lbfgs") == (case.loop == "closure" and case.optimizer == "lbfgs"),
            (case.optimizer == "lbfgs") <= (case.call != "one_pass"),
            case.loop not in ("gan", "autocast") or model.dtype is torch.float32,
            not (case.loop == "clip" and case.model == "sparse"),
            not (case.loop == "clip" and case.model == "several_dtypes"),
            case.loop != "closure" or case.scheduler == "none",
            case.scheduler != "one_cycle" or case.optimizer != "adamw_tensor_rate",
            case.config != "inductor" or not several,
            case.call in product.CALLS or several,
            case.call not in product.CALLS_OF_RANKS or _by_user(case),
            case.comm == "default" or several,
            not (several and case.loader == "stream_by_rank") or _in_step(case),
        )
    )


def _in_step(case: Case) -> bool:
    """Return whether ranks that have divided a stream themselves take the same number of steps.

    The product sees to that where each batch of its own loader is a step, and plain PyTorch never.
    In `gan` the oracle averages the second network's gradients alone, which must then be alike.
    """
    helped = case.call in product.CALLS and case.loop not in ("accumulate", "gan")
    ranks = launches.LAUNCHES[case.launch].world
    return helped or case.samples % (ranks * max(1, case.workers) * case.batch_size) == 0


def _by_user(case: Case) -> bool:
    """Return whether a user can wrap the model in DDP.

    The loader has to divide itself, and the process group has to exist before.
    """
    group = launches.LAUNCHES[case.launch].group == "before"
    known = case.loader in ("distributed_sampler", "stream_by_rank") and case.config == "plain"
    return (
        group
        and known
        and not MODELS[case.model].refusal
        and case.loop not in ("freeze", "gan", "two_backwards", "averaged_model")
    )


@st.composite
def cases(draw: Any) -> Case:
    """Draw a valid case.

    Hypothesis shrinks a failure towards the first name of each table, which is the simplest.
    """
    launch = draw(st.sampled_from(LAUNCHES))
    several = launches.LAUNCHES[launch].world > 1
    calls = product.CALLS + (product.CALLS_OF_RANKS if several else ())
    call = draw(st.sampled_from(calls))
    model = draw(st.sampled_from(MODEL_SHARES))
    loader = draw(st.sampled_from(list(LOADERS)))
    config = draw(st.sampled_from(CONFIGS))
    if call in product.CALLS_OF_RANKS:
        launch = draw(st.sampled_from(("two_group_before", "two_group_without_variables")))
        loader, config = draw(st.sampled_from(("distributed_sampler", "stream_by_rank"))), "plain"
    elif several and config == "inductor":
        config = "aot"
    loop = draw(st.sampled_from(list(loops.LOOPS)))
    case = Case(
        model=model,
        loader=loader,
        batch="list" if LOADERS[loader].only_list else draw(st.sampled_from(list(BATCHES))),
        loop=loop,
        launch=launch,
        config=config,
        call=call,
        optimizer=draw(st.sampled_from(MODELS[model].optimizers or list(OPTIMIZERS))),
        scheduler="none" if loop == "closure" else draw(st.sampled_from(list(SCHEDULERS))),
        comm=draw(st.sampled_from(list(product.COMMS))) if several else "default",
        order=draw(st.integers(0, 23)) if call == "parts" else 0,
        samples=draw(st.integers(5, 14)),
        batch_size=draw(st.integers(2, 4)),
        epochs=draw(st.integers(1, 3)),
        workers=draw(st.sampled_from((0,) * 10 + (1, 2))),
        seed=draw(st.integers(0, 3)),
    )
    assume(valid(case))
    return case
