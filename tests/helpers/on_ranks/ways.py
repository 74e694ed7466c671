"""Ways of averaging on models of the user's: parameters, copies, hooks, the tuner, the import."""

from __future__ import annotations

import copy
import gc
import io
import threading
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from against_torch.product import TURN_STEPS, TURNS
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import auto, reducer
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.comm.reducer import Channel, GradientReducer
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from on_ranks.models import (
    DDP,
    apart,
    batch,
    equal,
    message_of,
    stack,
    train_step,
)

auto.disable()


def _pair() -> list[DDP]:
    return [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]


def own_hook(when: int) -> dict[str, Any]:
    """Compare trainings whose user registers a communication hook before step `when`.

    Ways of averaging take turns, of which the first is DDP's own. The hook halves what is sent.
    """
    models, said = _pair(), []
    turns = Tuner(models[1], TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        for model in models:
            if step == when:
                hook = default_hooks.fp16_compress_hook
                said.append(message_of(lambda m=model, h=hook: m.register_comm_hook(None, h)))
        train_step(models, step)
    return {"exact": equal(*models), "said": said, "choice": turns.choice}


def copies() -> bool:
    """Return whether deep copies and pickles train as those of plain DDP, and the model goes on.

    Copies are made before, during and after the turns.
    """
    exact = True
    models = _pair()
    Tuner(models[1], TURNS, rounds=4, block_steps=2)
    for step in range(TURN_STEPS + 4):
        if step in (0, 1, TURN_STEPS // 2, TURN_STEPS - 1, TURN_STEPS + 2):
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


def frozen_at_a_rebuild() -> bool:
    """Return whether a layer's gradients are plain DDP's when it is frozen while a way begins.

    The layer is unfrozen later, and plain DDP goes on to average it. The user holds the reducers
    that were replaced.
    """
    models = _pair()
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


class Odd(nn.Module):
    """Model with parameters of every type and form that DDP takes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            return nn.Parameter(
                torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            )

        self.complex = weight(6, 8, dtype=torch.complex64)
        self.complex_turned = nn.Parameter(weight(7, 5, dtype=torch.complex64).data.t())
        self.doubles, self.double_bias = (
            weight(40, 30, dtype=torch.float64),
            weight(30, dtype=torch.float64),
        )
        self.halves, self.brain = (
            weight(9, 7, dtype=torch.float16),
            weight(9, 7, dtype=torch.bfloat16),
        )
        self.nothing, self.nothing_double = weight(0, 3), weight(0, dtype=torch.float64)
        self.turned = nn.Parameter(weight(5, 4, 3, 3).data.to(memory_format=torch.channels_last))
        self.single, self.shared = weight(), weight(12, 10)
        self.again = self.shared

    def forward(self, step: int) -> Tensor:
        rank, total = dist.get_rank(), torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(self.parameters()):
            generator = torch.Generator().manual_seed(1000 * step + 100 * rank + number)
            factor = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                parameter.dtype
            )
            scaled = parameter * factor
            total = (
                total
                + (
                    torch.view_as_real(scaled).pow(2) if scaled.is_complex() else scaled.double()
                ).sum()
            )
        return total


def odd_parameters(values: dict[str, Any]) -> dict[str, float]:
    """Return how far each mean gradient is from plain DDP's, over a few steps, by parameter.

    The unit is the largest gradient.
    """
    models = [DDP(Odd()), accelerate_ddp(DDP(Odd()), Comm(**values))]
    apart: dict[str, float] = {}
    for step in range(4):
        for model in models:
            model.zero_grad()
            model(step).backward()
        for (name, first), second in zip(
            models[0].module.named_parameters(), models[1].parameters(), strict=True
        ):
            a, b = first.grad, second.grad
            assert a.dtype == b.dtype
            if a.numel():
                apart[name] = max(
                    apart.get(name, 0.0), ((a - b).abs().max() / a.abs().max()).item()
                )
    accelerate_ddp(models[1], Comm())
    return apart


def large_gradients(values: dict[str, Any]) -> bool:
    """Return whether gradients arrive as in plain DDP when only their sum overflows.

    Their mean does not overflow.
    """
    models = [DDP(stack([6, 4])), accelerate_ddp(DDP(stack([6, 4])), Comm(**values))]
    for model in models:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
        model(batch(0, 6)).sum().backward()
    return equal(*models, gradients=True) and bool(models[0].module[0].weight.grad.isfinite().all())


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
        model = DDP(stack([4, 3]))
        model(batch(0, 4)).sum().backward()
        found["accelerated"].append(gradient_reducer(model) is not None)
    mine = Mine(stack([4, 3]))
    mine(batch(0, 4)).sum().backward()
    found["subclass"] = gradient_reducer(mine) is not None and mine.mine
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    delayed = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False))
    trained = list(delayed[0].named_parameters(prefix="0"))
    others: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "own group": (stack([4, 3]), {"process_group": groups[dist.get_rank()]}),
        "delayed": (
            delayed,
            {"delay_all_reduce_named_params": trained, "param_to_hook_all_reduce": trained[0][1]},
        ),
    }
    for name, (net, arguments) in others.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DDP(net, **arguments)
        found[name] = " ".join(str(warning.message) for warning in caught)
    auto.disable()
    return found


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
    ways = {"ddp": Comm(), **{kind: known[kind] for kind in kinds}}
    if "good" in kinds:  # then DDP's own way is made the slow one
        ways["ddp"] = Comm(streams=3)
    model, plain = DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))
    tuner = Tuner(model, ways, rounds=4, block_steps=4)
    for step in range(steps):
        train_step([model, plain], step, rate=0.01)
    return {"chosen": tuner.choice, "error": apart(model, plain)}
