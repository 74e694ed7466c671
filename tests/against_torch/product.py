"""Configurations of the product, and the ways to call it."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

from torch import nn

from gallery_lib.acceleration import accelerate
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm, Compiler, Config, Loader, Memory

from .case import Case
from .launches import LAUNCHES, WITHOUT_CALL
from .optimizers import SCHEDULERS, optimizer_of

COMPILED = {"aot": "aot_eager", "inductor": "inductor"}
"""Configurations that compile, and torch.compile's backend that does the same."""


def _eager(**more: Any) -> Config:
    return Config(compiler=Compiler(enabled=False), **more)


CONFIGS: dict[str, Callable[[], Config]] = {
    "plain": Config.plain,
    "eager": _eager,
    "contiguous": lambda: _eager(memory=Memory(layout="contiguous")),
    "aot": lambda: Config(compiler=Compiler(backend="aot_eager")),
    "inductor": Config,
    "always": lambda: _eager(loader=Loader(shard="always")),
}
COMMS: dict[str, dict[str, Any]] = {
    "default": {},
    "bucket_views": {"bucket_views": True},
    "small_buckets": {"bucket_mb": 0.001},
    "hierarchical": {"hierarchical": True},
    "streams": {"streams": 2},
    "tune": {"tune": True},
    "find_unused": {"find_unused_parameters": True},
}
TOGETHER = {"hierarchical": True, "streams": 2, "bucket_mb": 0.001, "bucket_views": True}
RARE_COMMS: dict[str, dict[str, Any]] = {
    "together": TOGETHER, "turns": {}, "bf16": {"wire": "bf16"}, "int8": {"wire": "int8"}
}  # fmt: skip
"""Ways of averaging that are not drawn; `turns` are those of TURNS, for the user's own DDP."""
TURNS = {
    "ddp": Comm(),
    "views": Comm(bucket_views=True),
    "streams": Comm(streams=2, bucket_mb=0.001),
    "together": Comm(**TOGETHER),
}
TURN_STEPS = 4 * len(TURNS) * (2 + 2)
WRAPPED: dict[str, dict[str, Any]] = {
    "static_graph": {"static_graph": True},
    "find_unused": {"find_unused_parameters": True},
    "own_views": {"gradient_as_bucket_view": True},
    "own_buckets": {"bucket_cap_mb": 0.0002},
    "early": {},  # the optimizer's step is taken in the backward pass
    "early_one_pass": {},
}
"""Arguments of the user's DistributedDataParallel, by ways to call that are not drawn."""
CALLS = ("older", "optimizer_before", "one_pass", "parts", "parts", "parts")
"""Ways to call accelerate(), repeated by the share in which they are drawn."""
CALLS_OF_RANKS = ("auto", "accelerate_ddp")
"""Further ways to call it, for a model that the user wraps in DistributedDataParallel."""


def by_user(case: Case) -> bool:
    """Return whether the user wraps the model in DistributedDataParallel."""
    return case.call in (*CALLS_OF_RANKS, *WRAPPED)


def _comm(case: Case) -> dict[str, Any]:
    return {**COMMS, **RARE_COMMS}[case.comm]


def config_of(case: Case) -> Config:
    """Return the configuration of a case."""
    config = CONFIGS[case.config]()
    if case.loop == "autocast":
        config.compute.bf16 = True
    for name, value in _comm(case).items():
        setattr(config.comm, name, value)
    return config


def accelerated(case: Case, model: nn.Module, loader: Any, validation: Any) -> tuple[Any, ...]:
    """Return (model, loader, validation, optimizer, scheduler, objections).

    The first five are as the case's way of calling has them. The objections name what accelerate()
    should have kept.
    """
    if case.call == "parts":
        return _parts(case, model, loader, validation)
    before = optimizer_of(case.optimizer, model) if case.call == "optimizer_before" else None
    if case.launch in WITHOUT_CALL:
        _compile(case, model)
    elif by_user(case):
        model = _in_ddp(case, model)
    else:
        model, loader = accelerate(model, loader, config=config_of(case))
    ours = case.call.endswith("one_pass")
    optimizer = before or optimizer_of(case.optimizer, model, ours)
    if case.call.startswith("early"):
        accelerate_ddp(model, Comm(**_comm(case)), optimizer=optimizer)
    return model, loader, validation, optimizer, SCHEDULERS[case.scheduler](optimizer), []


def _compile(case: Case, model: nn.Module) -> None:
    """Compile the model as a script does that knows nothing of accelerate()."""
    if case.launch == "plug":
        importlib.import_module("gallery_lib.plug")
    model.compile(backend="inductor" if case.launch == "plug" else "gallery")


def _parts(case: Case, model: nn.Module, loader: Any, validation: Any) -> tuple[Any, ...]:
    optimizer = optimizer_of(case.optimizer, model)
    scheduler = SCHEDULERS[case.scheduler](optimizer)
    parts: dict[str, Any] = {"model": model, "loader": loader, "optimizer": optimizer}
    parts |= {} if scheduler is None else {"scheduler": scheduler}
    parts |= {"validation": validation} if case.loop.startswith(("evaluate", "averaged")) else {}
    orders = list(itertools.permutations(parts))
    names = orders[case.order % len(orders)]
    # Nobody can tell two loaders apart, so their order is the names' order.
    returned = accelerate(*(parts[name] for name in names), config=config_of(case))
    after = dict(zip(names, returned, strict=True))
    inner = getattr(model, "_orig_mod", model)  # torch.compile's wrapper is taken off
    kept = {"optimizer", "scheduler"} & set(parts)
    if LAUNCHES[case.launch].world == 1 and inner is model:
        kept.add("model")
    lost = [f"{name} is another object" for name in kept if after[name] is not parts[name]]
    for name, one in (("model", inner), ("optimizer", optimizer)):
        if not isinstance(after[name], type(one)):
            lost.append(f"the {name} is not of its class any more")
    loaders = after["loader"], after.get("validation", validation)
    return after["model"], *loaders, after["optimizer"], after.get("scheduler"), lost


def _in_ddp(case: Case, model: nn.Module) -> nn.Module:
    """Return the model in DistributedDataParallel, as the user wraps it."""
    if case.call == "auto":
        auto = importlib.import_module("gallery_lib.comm.auto")
        for name, value in _comm(case).items():
            setattr(auto.options, name, value)
    wrapped = nn.parallel.DistributedDataParallel(model, **WRAPPED.get(case.call, {}))
    if case.comm == "turns":
        Tuner(wrapped, TURNS, rounds=4, block_steps=2)
    elif case.call != "auto":
        accelerate_ddp(wrapped, Comm(**_comm(case)))
    return wrapped


def accelerate_more(case: Case, model: nn.Module, optimizer: Any) -> tuple[Any, Any]:
    """Make a second network and its optimizer ready, in the case's way."""
    if case.launch in WITHOUT_CALL:
        return model, optimizer
    if by_user(case):
        return _in_ddp(case, model), optimizer
    if case.call == "parts":
        return accelerate(model, optimizer, config=config_of(case))
    return accelerate(model, None, config=config_of(case))[0], optimizer
