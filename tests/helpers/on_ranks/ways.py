"""Ways of averaging: how exact gradients are, and what user code around a model notices of them."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from against_torch.product import TURN_STEPS, TURNS
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import auto, process_group, reducer
from gallery_lib.comm.accelerate_ddp import (
    accelerate_ddp,
    comm_state_dict,
    gradient_reducer,
    load_comm_state_dict,
    step_in_backward,
)
from gallery_lib.comm.ddp import distribute
from gallery_lib.comm.reducer import Channel
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from on_ranks.models import DDP, apart, batch, equal, loss, message_of, small, stack, train_step

auto.disable()


# --------------------------------------------------------------------------------------------------
# Gradients and weights beside those of plain DDP, or the exact ones


def relative_error(widths: list[int], values: dict[str, Any]) -> float:
    """Return the relative error of all mean gradients of a step together."""
    model = accelerate_ddp(DDP(stack(widths)), Comm(**values))
    loss(model, 0, widths[0]).backward()
    alone = copy.deepcopy(model.module).double()
    alone.zero_grad()
    for rank in range(dist.get_world_size()):
        alone(batch(0, widths[0], rank).double()).pow(2).sum().backward()
    got, total = (
        torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double()
        for net in (model, alone)
    )
    exact = total / dist.get_world_size()
    return ((got - exact).norm() / exact.norm()).item()


class Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(values.to(dtype))

        self.complex = weight(6, 8, dtype=torch.complex64)
        self.complex_turned = nn.Parameter(weight(7, 5, dtype=torch.complex64).data.t())
        self.doubles = weight(40, 30, dtype=torch.float64)
        self.double_bias = weight(30, dtype=torch.float64)
        self.halves = weight(9, 7, dtype=torch.float16)
        self.brain = weight(9, 7, dtype=torch.bfloat16)
        self.nothing, self.nothing_double = weight(0, 3), weight(0, dtype=torch.float64)
        self.turned = nn.Parameter(weight(5, 4, 3, 3).data.to(memory_format=torch.channels_last))
        self.single, self.shared = weight(), weight(12, 10)
        self.again = self.shared

    def forward(self, step: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            seed = 1000 * step + 100 * dist.get_rank() + number
            generator = torch.Generator().manual_seed(seed)
            factor = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scaled = parameter * factor.to(parameter.dtype)
            real = torch.view_as_real(scaled).pow(2) if scaled.is_complex() else scaled.double()
            total = total + real.sum()
        return total


def odd_parameters(values: dict[str, Any]) -> dict[str, float]:
    """Return how far each mean gradient is from plain DDP's, over a few steps, by parameter.

    The unit is the largest gradient.
    """
    models = [DDP(Odd()), accelerate_ddp(DDP(Odd()), Comm(**values))]
    worst: dict[str, float] = {}
    for step in range(4):
        for model in models:
            model.zero_grad()
            model(step).backward()
        pairs = zip(models[0].module.named_parameters(), models[1].parameters(), strict=True)
        for (name, first), second in pairs:
            a, b = first.grad, second.grad
            assert a.dtype == b.dtype
            if a.numel():
                error = ((a - b).abs().max() / a.abs().max()).item()
                worst[name] = max(worst.get(name, 0.0), error)
    accelerate_ddp(models[1], Comm())
    return worst


def large_gradients(values: dict[str, Any]) -> bool:
    """Return whether gradients arrive as in plain DDP when only their sum overflows.

    Their mean does not overflow.
    """
    models = [small(), accelerate_ddp(small(), Comm(**values))]
    for model in models:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        model(batch(0)).sum().backward()
    return equal(*models, gradients=True) and bool(models[0].module[0].weight.grad.isfinite().all())


def buckets(values: dict[str, Any]) -> list[int]:
    """Return the bytes of the buckets of the third step, in the order in which they are sent."""
    model = accelerate_ddp(DDP(stack([64] * 5)), Comm(**values))
    seen: list[int] = []

    def take(state, bucket):  # torch looks at annotations
        seen.append(bucket.buffer().nbytes)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, take)
    for step in range(3):
        seen.clear()
        loss(model, step, 64).backward()
    return list(seen)


def gradient_memories(made_with: dict[str, bool], ways: list[dict[str, Any]]) -> list[int]:
    """Return in how many storages the gradients of a model with two parameters lie, way after way.

    They lie in one storage where they are views of a bucket.
    """
    model, found = DDP(stack([8, 8]), **made_with), []
    for values in [*ways, {}]:
        model.zero_grad()
        accelerate_ddp(model, Comm(**values))
        for step in range(3):
            model.zero_grad()
            loss(model, step, 8).backward()
        found.append(len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}))
    return found


def uneven_batches(values: dict[str, Any], early: bool) -> float:
    """Rank r has r + 2 batches; `join` lets the ranks that are done stand by."""
    models = [small(), small()]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if model is models[1]:
            accelerate_ddp(model, Comm(**values), optimizer=optimizer if early else None)
        block = early and model is models[1]
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                value = loss(model, step)
                with step_in_backward(model) if block else contextlib.nullcontext():
                    value.backward()
                optimizer.step()
    return apart(*models)


def compiled(widths: list[int]) -> dict[str, Any]:
    """Return the number of graphs of a compiled model, and how far off its mean gradients are."""
    graphs, worst = [], 0.0

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, plain = stack(widths), DDP(stack(widths))
    model.compile(backend=backend)
    averaged = distribute(model, torch.device("cpu"), Comm())
    for step in range(3):
        for each in (averaged, plain):
            each.zero_grad()
            loss(each, step, widths[0]).backward()
        worst = max(worst, apart(model, plain, gradients=True))
    return {"graphs": len(graphs), "apart": worst}


def resumed(values: dict[str, Any]) -> list[bool]:
    """Return whether three more steps after a checkpoint are those that would have come without it.

    The first value is with what comm keeps, the second without.
    """
    same, widths = [], [64, 40, 30]

    def steps(model: nn.Module, *numbers: int) -> None:
        for step in numbers:
            train_step([model], step, widths[0], rate=0.001)

    for keep in (True, False):
        model = accelerate_ddp(DDP(stack(widths)), Comm(**values))
        steps(model, 0, 1, 2, 3)
        weights, kept = copy.deepcopy((model.module.state_dict(), comm_state_dict(model)))
        steps(model, 4, 5, 6)
        other = accelerate_ddp(DDP(stack(widths)), Comm(**values))
        steps(other, 0)  # DDP orders its buckets at the first step
        other.module.load_state_dict(weights)
        if keep:
            load_comm_state_dict(other, kept)
        steps(other, 4, 5, 6)
        same.append(equal(model, other))
    return same


def tuned(kinds: list[str], steps: int) -> dict[str, Any]:
    """Train with a tuner that may choose between DDP's own way and `kinds`.

    Ways with 3 streams are slow. The result has the way chosen and the largest error of a weight.
    """

    class Slow(Channel):
        def __init__(self, options: Comm, *others: Any) -> None:
            self.slow = options.streams == 3
            super().__init__(options, *others)

        def average_(self, *arguments: Any) -> None:
            if self.slow:
                time.sleep(0.1)
            super().average_(*arguments)

    reducer.Channel = Slow  # type: ignore[misc]
    known = {"slow": Comm(streams=3), "good": Comm(streams=2)}
    # With a good way, DDP's own is made a slow one.
    ways = {"ddp": known["slow"] if "good" in kinds else Comm()}
    ways |= {kind: known[kind] for kind in kinds}
    model, plain = small(), small()
    tuner = Tuner(model, ways, rounds=4, block_steps=4)
    for step in range(steps):
        train_step([model, plain], step, rate=0.01)
    return {"chosen": tuner.choice, "error": apart(model, plain)}


# --------------------------------------------------------------------------------------------------
# User code around the model, and what is left of a way


def own_hook(when: int) -> dict[str, Any]:
    """Compare trainings whose user registers a communication hook before step `when`.

    Ways of averaging take turns, of which the first is DDP's own. The hook halves what is sent.
    """
    models, said = [small(), small()], []
    hook = default_hooks.fp16_compress_hook
    turns = Tuner(models[1], TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        for model in models if step == when else []:
            said.append(message_of(lambda m=model: m.register_comm_hook(None, hook)))
        train_step(models, step)
    return {"exact": equal(*models), "said": said, "choice": turns.choice}


def copies() -> bool:
    """Return whether deep copies and pickles train as those of plain DDP, and the model goes on.

    Copies are made before, during and after the turns.
    """
    exact, models = True, [small(), small()]
    Tuner(models[1], TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        copying = step in (0, 1, TURN_STEPS // 2, TURN_STEPS - 1, TURN_STEPS + 2)
        for kind in (copy.deepcopy, _pickled) if copying else ():
            copied = [kind(model) for model in models]
            for each in copied:
                for later in range(3):
                    loss(each, later).backward()
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


def frozen_at_a_rebuild() -> bool:
    """Return whether a layer's gradients are plain DDP's when it is frozen while a way begins.

    The layer is unfrozen later, and plain DDP goes on to average it. The user holds the reducers
    that were replaced.
    """
    models = [small(), small()]
    exact, held = True, [models[1].reducer]
    for values in ({"streams": 2}, {}, {"bucket_views": True}, {}):
        for model in models:
            model.module[0].requires_grad_(False)
        accelerate_ddp(models[1], Comm(**values))
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
    last = accelerate_ddp(small(), Comm(streams=2))
    counts = [threading.active_count()]
    models = [accelerate_ddp(small(), Comm(streams=2)) for _ in range(3)]
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
    before, model, counts = _alive(), small(), []
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
    return sum(isinstance(thing, reducer.GradientReducer) for thing in gc.get_objects())


def shared_memory(failing_rank: int | None) -> dict[str, Any]:
    """Return what ranks of a host see in the memory that they share, or the error.

    `names` are the names that the file behind it has, when it is opened.
    """
    names, open_file = [], torch.from_file

    def opened(path: str, **options: Any) -> torch.Tensor:
        names.append(Path(path).stat().st_nlink)
        if dist.get_rank() == failing_rank:
            raise RuntimeError("made to fail")
        return open_file(path, **options)

    local, _ = process_group.averaging_groups(process_group.find_topology(), True)
    assert local is not None
    slots, seen = reducer.SharedSlots(local), []
    try:
        with mock.patch.object(torch, "from_file", opened):
            for size in (3, 300):
                rows = slots.of(size, torch.float32)
                rows[dist.get_rank(local)].fill_(dist.get_rank())
                slots.meet()
                seen.append(rows[: dist.get_world_size(local)].mean(1).tolist())
                slots.meet()
    except Exception as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"seen": seen, "names": names}


class Mine(DDP):
    """Subclass whose constructor goes on after DDP's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.mine = "mine"


def automatic(values: dict[str, Any]) -> dict[str, Any]:
    """Return what the import accelerates, and the warnings for models left as they are."""
    auto.options = Comm(**values)
    found: dict[str, Any] = {"accelerated": []}
    for change in (auto.enable, auto.disable, auto.enable):
        change()
        model = small()
        loss(model, 0).backward()
        found["accelerated"].append(gradient_reducer(model) is not None)
    mine = Mine(stack([6, 3]))
    loss(mine, 0).backward()
    found["subclass"] = gradient_reducer(mine) is not None and mine.mine
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    net = stack([4, 3, 2])
    delayed = list(net.named_parameters())
    others: dict[str, dict[str, Any]] = {
        "own group": {"process_group": groups[dist.get_rank()]},
        "delayed": {
            "delay_all_reduce_named_params": delayed[:2],
            "param_to_hook_all_reduce": delayed[0][1],
        },
    }
    net[2].requires_grad_(False)
    for name, arguments in others.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DDP(net, **arguments)
        found[name] = " ".join(str(warning.message) for warning in caught)
    auto.disable()
    return found


# --------------------------------------------------------------------------------------------------
# Options that cannot be met


def refused(values: dict[str, Any], what: str) -> str:
    """Return the message for options that cannot be met."""
    if what == "different options":
        return _different_options()
    nets = {
        "sparse": nn.Embedding(4, 3, sparse=True),
        "complex": nn.Linear(4, 3, dtype=torch.complex64),
    }
    arguments = {"static": {"static_graph": True}, "unused": {"find_unused_parameters": True}}
    own = type("Own", (torch.optim.SGD,), {"__module__": "mine"})
    optimizers = dict.fromkeys(("static", "unused", "complex"), torch.optim.SGD)
    optimizers |= {"LBFGS": torch.optim.LBFGS, "own optimizer": own}
    model: Any = DDP(nets.get(what, stack([4, 3])), **arguments.get(what, {}))
    if what == "own hook":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = optimizers[what](model.parameters(), lr=0.1) if what in optimizers else None
    given = model.module if what == "plain module" else model
    return message_of(lambda: accelerate_ddp(given, Comm(**values), optimizer=optimizer))


def _different_options() -> str:
    model = small()
    message = message_of(lambda: accelerate_ddp(model, Comm(streams=1 + dist.get_rank())))
    train_step([model], 0)  # the model is as before
    return message
