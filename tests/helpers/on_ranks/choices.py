"""Ways of averaging that nobody named: chosen by the tuner, or by the import."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm import reducer
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.strategy import gradient_reducer
from gallery_lib.comm.tuner import Tuner
from gallery_lib.comm.watch import watch_of
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, options_of, stack


def automatic(values: dict[str, Any]) -> list[bool]:
    """Return whether DDP is accelerated: by the import, after disable(), after enable() again.

    The last value is for a model in a process group of its own.
    """
    import gallery_lib.comm.auto as auto

    auto.options = options_of(values)
    found = []
    for change in (auto.enable, auto.disable, auto.enable):
        change()
        model = DDP(stack([4, 3]))
        model(batch(0, 4)).sum().backward()
        found.append(gradient_reducer(model) is not None)
    for rank in range(dist.get_world_size()):
        group = dist.new_group([rank])
        if rank == dist.get_rank():
            with pytest.warns(UserWarning, match="not in the default process group"):
                found.append(gradient_reducer(DDP(stack([4, 3]), process_group=group)) is not None)
    auto.disable()
    return found


def tuned(kinds: list[str], steps: int) -> dict[str, Any]:
    """Train with a tuner that may choose between DDP's own way and `kinds`.

    Ways with 3 streams are slow. The result has the way chosen at once, the way chosen at the end,
    and the largest error of a weight.
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
    ways = {
        "ddp": Comm(),
        **{
            kind: {"slow": options_of({"streams": 3}), "good": options_of({"streams": 2})}[kind]
            for kind in kinds
        },
    }
    if "good" in kinds:  # then DDP's own way is made the slow one
        ways["ddp"] = options_of({"streams": 3})
    model, other = DDP(stack([6, 9, 4])), stack([6, 9, 4])
    tuner = Tuner(model, ways, rounds=4, block_steps=4)
    chosen_at_once = tuner.choice
    for step in range(steps):
        for each in (model, other):
            each.zero_grad()
        model(batch(step, 6)).pow(2).sum().backward()
        for rank in range(dist.get_world_size()):
            (other(batch(step, 6, rank)).pow(2).sum() / dist.get_world_size()).backward()
        with torch.no_grad():
            for parameter in [*model.parameters(), *other.parameters()]:
                parameter -= 0.01 * parameter.grad
    pairs = zip(model.module.parameters(), other.parameters(), strict=True)
    return {
        "at once": chosen_at_once,
        "chosen": tuner.choice,
        "error": max((a - b).abs().max().item() for a, b in pairs),
    }


def automatic_twice() -> list[dict[str, Any]]:
    """Return the calls of a forward hook in a first run, which chooses, and in a second.

    The second run keeps the choice of the first.
    """
    import gallery_lib.comm.auto as auto

    auto.options = Comm(tune=True)
    auto.enable()
    found = []
    for _ in range(2):
        model, calls = DDP(stack([5, 3])), []
        model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        watch = watch_of(model)
        for step in range(180):
            model(batch(step, 5)).sum().backward()
        found.append(
            {"calls": len(calls), "chosen": watch is not None and watch.before_forward is None}
        )
    auto.disable()
    return found


def automatic_otherwise() -> dict[str, Any]:
    """Return what the import does to a DDP subclass, and the warnings for models left as they are.

    The constructor of the subclass goes on after DDP's.
    """
    import gallery_lib.comm.auto as auto

    class Mine(DDP):
        def __init__(self, module: nn.Module) -> None:
            super().__init__(module)
            self.mine = "mine"

    auto.options = Comm(streams=2)
    auto.enable()
    found: dict[str, Any] = {}
    mine = Mine(stack([4, 3]))
    mine(batch(0, 4)).sum().backward()
    found["subclass"] = [gradient_reducer(mine) is not None, mine.mine]
    delayed = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).requires_grad_(False))
    trained = [
        (name, parameter)
        for name, parameter in delayed.named_parameters()
        if parameter.requires_grad
    ]
    others: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "delayed": (
            delayed,
            {"delay_all_reduce_named_params": trained, "param_to_hook_all_reduce": trained[0][1]},
        ),
    }
    for name, (net, arguments) in others.items():
        with pytest.warns(
            UserWarning, match="leaves this DistributedDataParallel as it is"
        ) as caught:
            DDP(net, **arguments)
        found[name] = " ".join(str(warning.message) for warning in caught)
    auto.disable()
    return found


def damaged() -> list[bool]:
    """Return whether a stored choice that cannot be read was set aside, with nothing taken from it.

    Only rank 0 sees the file.
    """
    ways = {"ddp": Comm(), "views": Comm(bucket_views=True)}
    path = Tuner(DDP(stack([7, 2])), ways).path
    assert path is not None
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    dist.barrier()
    tuner = Tuner(DDP(stack([7, 2])), ways)
    dist.barrier()
    return [
        tuner.choice is None,
        not path.exists(),
        path.with_name(f"{path.name}.damaged").read_text() == "{",
    ]
