"""Ways of averaging that nobody named: chosen by the tuner, or by the import."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch.distributed as dist
from torch import nn

from gallery_lib.comm import auto, reducer
from gallery_lib.comm.accelerate_ddp import gradient_reducer
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.torch_ddp import watch_of
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from on_ranks.models import DDP, apart, batch, options_of, stack, train_step

auto.disable()


class Mine(DDP):
    """Subclass whose constructor goes on after DDP's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.mine = "mine"


def automatic(values: dict[str, Any]) -> dict[str, Any]:
    """Return what the import accelerates, and the warnings for models left as they are."""
    auto.options = options_of(values)
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


def automatic_twice() -> list[dict[str, Any]]:
    """Return the calls of a forward hook in a first run, which chooses, and in a second.

    The second run keeps the choice of the first.
    """
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
    known = {"slow": Comm(streams=3), "good": Comm(streams=2)}
    ways = {"ddp": Comm(), **{kind: known[kind] for kind in kinds}}
    if "good" in kinds:  # then DDP's own way is made the slow one
        ways["ddp"] = Comm(streams=3)
    model, plain = DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))
    tuner = Tuner(model, ways, rounds=4, block_steps=4)
    at_once = tuner.choice
    for step in range(steps):
        train_step([model, plain], step, rate=0.01)
    return {"at once": at_once, "chosen": tuner.choice, "error": apart(model, plain)}


def damaged() -> bool:
    """Return whether nothing is taken from a stored choice that cannot be read.

    Only rank 0 sees the file.
    """
    ways = {"ddp": Comm(), "views": Comm(bucket_views=True)}
    path = Tuner(DDP(stack([7, 2])), ways).path
    assert path is not None
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
    dist.barrier()
    return Tuner(DDP(stack([7, 2])), ways).choice is None
