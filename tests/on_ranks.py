"""What the tests of comm/ have every rank do (ranks.py)."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import connect
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import process_group, reducer
from gallery_lib.comm.accelerated import accelerate_ddp, comm_state_dict, load_comm_state_dict
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from gallery_lib.measure.replay.model import Replay
from gallery_lib.measure.replay.timeline import Timeline
from gallery_lib.processes import die_with_parent

DDP = nn.parallel.DistributedDataParallel


class Branches(nn.Module):
    """Two layers; which of them is used differs by rank, and the last is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[dist.get_rank() % 2](x)


def options_of(values: dict[str, Any]) -> Comm:
    options = Comm()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def stack(widths: list[int]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())))


def batch(step: int, width: int, rank: int | None = None, rows: int = 3) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def own_gradients(model: nn.Module, step: int, width: int, rank: int) -> list[Tensor]:
    """What `rank` has before anything is averaged."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    alone(batch(step, width, rank)).pow(2).sum().backward()
    return [parameter.grad.double() for parameter in alone.parameters()]


def gradients(widths: list[int], values: dict[str, Any], steps: int = 3) -> dict[str, Any]:
    """The worst error of a mean gradient, in units of what rounding may come to; whether all ranks have the same bits.

    The sum of n terms in any order differs from the exact one by at most (n - 1)·u·Σ|term| (Higham, Accuracy and Stability of
    Numerical Algorithms, 4.2), and u = eps / 2; dividing by n adds one rounding.
    """
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    plain = DDP(stack(widths))
    worst = against_plain = 0.0
    for step in range(steps):
        for each in (model, plain):
            each.zero_grad()
            each(batch(step, widths[0])).pow(2).sum().backward()
        terms = [own_gradients(model.module, step, widths[0], rank) for rank in range(dist.get_world_size())]
        for parameter, other, *own in zip(model.parameters(), plain.parameters(), *terms, strict=True):
            unit = torch.finfo(torch.float32).eps / 2 * sum(term.abs() for term in own) + 1e-40  # n·u·Σ|term| / n
            worst = max(worst, ((parameter.grad - sum(own) / len(own)).abs() / unit).max().item())
            against_plain = max(against_plain, ((parameter.grad - other.grad).abs() / unit).max().item())
    same = process_group.all_ranks([parameter.grad.sum().item() for parameter in model.parameters()])
    accelerate_ddp(model, Comm())  # ends its threads
    return {"worst": worst, "against_plain": against_plain, "same": all(each == same[0] for each in same)}


def bucket_bytes(widths: list[int], values: dict[str, Any]) -> list[int]:
    """Of the buckets of a third step, in the order in which they are sent."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    seen: list[int] = []

    def take(state, bucket):  # torch looks at annotations
        seen.append(bucket.buffer().nbytes)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, take)
    for step in range(3):
        seen.clear()
        model(batch(step, widths[0])).pow(2).sum().backward()
    return list(seen)


def relative_error(widths: list[int], values: dict[str, Any]) -> float:
    """Of all mean gradients of one step together."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    model(batch(0, widths[0])).pow(2).sum().backward()
    got = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    terms = [torch.cat([g.flatten() for g in own_gradients(model.module, 0, widths[0], r)]) for r in range(dist.get_world_size())]
    exact = sum(terms) / len(terms)
    return ((got - exact).norm() / exact.norm()).item()


def unused_parameters(values: dict[str, Any]) -> float:
    torch.manual_seed(0)
    models = [DDP(Branches(), find_unused_parameters=True)]
    models.append(accelerate_ddp(DDP(copy.deepcopy(models[0].module), find_unused_parameters=True), options_of(values)))
    for step in range(3):
        for model in models:
            model.zero_grad(set_to_none=False)
            model(batch(step, 7)).pow(2).sum().backward()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    return max(0.0 if a.grad is None and b.grad is None else (a.grad - b.grad).abs().max().item() for a, b in pairs)


def uneven_batches(values: dict[str, Any]) -> list[float]:
    """Rank r has r + 2 batches; `join` lets those that are done stand by. Weights after training: plain, accelerated."""
    sums = []
    for accelerated in (False, True):
        model = DDP(stack([6, 9, 4]))
        if accelerated:
            accelerate_ddp(model, options_of(values))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                model(batch(step, 6)).pow(2).sum().backward()
                optimizer.step()
        sums.append(sum(parameter.double().abs().sum().item() for parameter in model.parameters()))
    return sums


def two_models_one_frozen_midway(values: dict[str, Any]) -> float:
    """Both at work in one step; from the third step on a layer of the first is frozen, and it is wrapped anew. Largest difference."""
    weights = []
    for accelerated in (False, True):
        models = [stack([6, 9, 4]), stack([4, 8, 2])]

        def wrap(model: nn.Module, accelerated: bool = accelerated) -> nn.Module:
            return accelerate_ddp(DDP(model), options_of(values)) if accelerated else DDP(model)

        first, second = (wrap(model) for model in models)
        for step in range(4):
            if step == 2:
                models[0][0].requires_grad_(False)
                first = wrap(models[0])
            for model in models:
                model.zero_grad()
            second(first(batch(step, 6))).pow(2).sum().backward()
            with torch.no_grad():
                for model in models:
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter -= 0.01 * parameter.grad
        weights.append([parameter.detach().clone() for model in models for parameter in model.parameters()])
    return max((a - b).abs().max().item() for a, b in zip(*weights, strict=True))


def accumulation(values: dict[str, Any]) -> float:
    """Two backward passes under no_sync, a third with communication, against plain DDP."""
    models = [DDP(stack([6, 9, 4])), accelerate_ddp(DDP(stack([6, 9, 4])), options_of(values))]
    for model in models:
        for step in range(3):
            with model.no_sync() if step < 2 else torch.enable_grad():
                model(batch(step, 6)).pow(2).sum().backward()
    return max((a.grad - b.grad).abs().max().item() for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


def early_steps(optimizer: str, arguments: dict[str, Any], values: dict[str, Any], uneven: bool = False) -> dict[str, Any]:
    """Training with the optimizer's step in the backward pass, against plain DDP: two groups, a schedule, accumulation."""
    models, moved = [DDP(stack([6, 90, 40])), DDP(stack([6, 90, 40]))], []
    for early, model in enumerate(models):
        parameters = list(model.parameters())
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.003}]
        update = getattr(torch.optim, optimizer)(groups, lr=0.01, **arguments)
        if early:
            accelerate_ddp(model, options_of(values), optimizer=update)
        schedule = torch.optim.lr_scheduler.StepLR(update, 2, gamma=0.5)
        with model.join(enable=uneven):
            for step in range(4 + (dist.get_rank() if uneven else 0)):
                update.zero_grad()
                before = [parameter.detach().clone() for parameter in parameters]
                if not uneven:
                    with model.no_sync():
                        model(batch(100 + step, 6)).pow(2).sum().backward()
                model(batch(step, 6)).pow(2).sum().backward()
                if early:
                    moved.append(all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)))
                update.step()
                schedule.step()
                assert all(parameter.grad is not None for parameter in parameters)
    error = max((a - b).abs().max().item() for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    accelerate_ddp(models[1], Comm())  # takes the optimizer back, too
    update.zero_grad()
    before = parameters[0].detach().clone()
    models[1](batch(0, 6)).pow(2).sum().backward()
    late = torch.equal(before, parameters[0])
    update.step()
    return {"error": error, "moved": all(moved), "late": late and not torch.equal(before, parameters[0])}


def not_finite(values: dict[str, Any], bad_rank: int) -> str:
    """What is raised when the gradient of one layer is NaN on one rank; the step after it is an ordinary one."""
    model = accelerate_ddp(DDP(stack([6, 9, 4])), options_of({**values, "non_finite": "stop"}))
    handle = model.module[2].weight.register_hook(lambda g: g * torch.nan if dist.get_rank() == bad_rank else g)
    try:
        model(batch(0, 6)).pow(2).sum().backward()
        return "nothing was raised"
    except Exception as error:
        message = str(error)
    handle.remove()
    return message


def skipped(values: dict[str, Any], bad_rank: int, stand_by: bool) -> dict[str, Any]:
    """One step of four has a NaN on one rank, and is not to change anything: neither weights nor momentum nor what is kept for later.

    `stand_by`: rank 0 has no batch any more in the last two steps."""
    model = accelerate_ddp(DDP(stack([6, 9, 4])), options_of({**values, "non_finite": "skip"}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    seen = []
    steps = range(2 if stand_by and dist.get_rank() == 0 else 4)
    with model.join() if stand_by else contextlib.nullcontext():
        for step in steps:
            bad = step == 2 and dist.get_rank() == bad_rank
            handle = model.module[2].weight.register_hook(lambda g, bad=bad: g * torch.nan if bad else g)
            optimizer.zero_grad()
            model(batch(step, 6)).pow(2).sum().backward()
            handle.remove()
            optimizer.step()
            seen.append([p.detach().clone() for p in model.parameters()])
    moved = [any(not torch.equal(a, b) for a, b in zip(one, other, strict=True)) for one, other in itertools.pairwise(seen)]
    finite = all(bool(p.isfinite().all()) for p in [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())])
    return {"moved": moved, "finite": finite, "sum": sum(p.double().sum().item() for p in model.parameters())}


def resumed(values: dict[str, Any]) -> list[bool]:
    """Whether three more steps after a checkpoint are those that would have come without it, with and without what comm keeps."""
    same = []
    for keep in (True, False):
        widths = [64, 40, 30]
        model = accelerate_ddp(DDP(stack(widths)), options_of(values))

        def steps(model: nn.Module, numbers: range, width: int = widths[0]) -> None:
            for step in numbers:
                model.zero_grad()
                model(batch(step, width)).pow(2).mean().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad

        steps(model, range(4))
        weights, kept = copy.deepcopy(model.module.state_dict()), copy.deepcopy(comm_state_dict(model))
        steps(model, range(4, 7))
        other = accelerate_ddp(DDP(stack(widths)), options_of(values))
        steps(other, range(1))  # DDP orders its buckets at the first step
        other.module.load_state_dict(weights)
        if keep:
            load_comm_state_dict(other, kept)
        steps(other, range(4, 7))
        same.append(all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)))
    return same


def automatic(values: dict[str, Any]) -> list[bool]:
    """Whether DDP is accelerated: by the import, after disable(), after enable() again; and in a process group of its own."""
    import gallery_lib.comm.auto as auto

    auto.options = options_of(values)
    found = []
    for change in (auto.enable, auto.disable, auto.enable):
        change()
        model = DDP(stack([4, 3]))
        model(batch(0, 4)).sum().backward()
        found.append(bool(model._comm_hooks))
    for rank in range(dist.get_world_size()):
        group = dist.new_group([rank])
        if rank == dist.get_rank():
            with pytest.warns(UserWarning, match="not in the default process group"):
                found.append(bool(DDP(stack([4, 3]), process_group=group)._comm_hooks))
    auto.disable()
    return found


def tuned(kinds: list[str], steps: int) -> dict[str, Any]:
    """Train with a tuner that may choose between DDP's own way and `kinds`; ways with 3 streams are slow."""

    class Slow(Channel):
        def __init__(self, options: Comm, *others: Any) -> None:
            self.slow = options.streams == 3
            super().__init__(options, *others)

        def average_(self, *arguments: Any) -> None:
            if self.slow:
                time.sleep(0.1)
            super().average_(*arguments)

    reducer.Channel = Slow  # type: ignore[misc]
    ways = {"ddp": Comm(), **{kind: {"slow": options_of({"streams": 3}), "good": options_of({"streams": 2})}[kind] for kind in kinds}}
    if "good" in kinds:  # then DDP's own way is made the slow one
        ways["ddp"] = options_of({"streams": 3})
    model, other = DDP(stack([6, 9, 4])), stack([6, 9, 4])
    tuner = Tuner(model, ways, rounds=4, block_steps=4)
    chosen_at_once = tuner.chosen
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
    return {"at once": chosen_at_once, "chosen": tuner.chosen, "error": max((a - b).abs().max().item() for a, b in pairs)}


def refused(values: dict[str, Any], what: str) -> str:
    """The message for an impossible wish."""
    model: Any = DDP(stack([4, 3]))
    if what == "plain module":
        model = model.module
    elif what == "own hook":
        model.register_comm_hook(None, _own_hook)
    optimizer = None
    if what in ("LBFGS", "SGD"):
        optimizer = getattr(torch.optim, what)(model.parameters(), lr=0.1)
    elif what == "own optimizer":
        optimizer = type("Own", (torch.optim.SGD,), {"__module__": "mine"})(model.parameters())
    elif what == "unused":
        model, optimizer = DDP(model.module, find_unused_parameters=True), torch.optim.SGD(model.parameters())
    try:
        accelerate_ddp(model, options_of(values), optimizer=optimizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _own_hook(state, bucket):  # type: ignore[no-untyped-def]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])


def replayed(values: dict[str, Any], timeline: Timeline, late_seconds: float) -> dict[str, Any]:
    """Steps of a replay whose rank 0 is late with its backward pass: the worst error of a mean gradient, and the last step's time."""
    own = dataclasses.replace(timeline, forward_seconds=late_seconds) if dist.get_rank() == 0 else timeline
    replay = Replay(own, seed=dist.get_rank())
    model = accelerate_ddp(DDP(replay, init_sync=False), options_of(values))
    for _ in range(3):
        seconds = replay.train_step(model)
    of_ranks = [Replay(timeline, seed=rank) for rank in range(dist.get_world_size())]
    gradients = {gradient.place: gradient for gradient in timeline.gradients}
    worst = 0.0
    for place, parameter in enumerate(replay.parameters()):
        exact = sum(each.gradient(gradients[place]).double() for each in of_ranks) / len(of_ranks)
        worst = max(worst, (parameter.grad - exact).abs().max().item())
    sums = [parameter.grad.sum().item() for parameter in replay.parameters()]
    accelerate_ddp(model, Comm())  # ends its threads
    return {"worst": worst, "seconds": seconds, "sums": sums}


def buckets_of_a_replay(timeline: Timeline) -> list[float]:
    """When DDP hands over its buckets, one for each gradient, in the third step of a replay: seconds since the backward pass began."""
    replay = Replay(timeline)
    model = DDP(replay, init_sync=False, bucket_cap_mb=0.3)
    handed_over: list[float] = []

    def hook(group, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and here they are text
        handed_over.append(time.perf_counter())
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(3):
        handed_over.clear()
        loss = model()
        began = time.perf_counter()
        loss.backward()
    return [moment - began for moment in handed_over]


def main(arguments: list[str]) -> None:
    die_with_parent()
    address, key, on_each_host = arguments
    os.environ["GALLERY_CACHE_DIR"] = str(Path(address).parent / "cache")
    os.environ["GROUP_RANK"] = str(process_group.rank() // int(on_each_host))
    torch.set_num_threads(1)
    process_group.ensure_initialized(timeout_seconds=20)
    link = connect(address, key, process_group.rank())
    while True:
        try:
            function, values = link.recv()
        except EOFError:
            break
        try:
            link.send(globals()[function](*values))
        except Exception as error:
            link.send(error)
    os._exit(0)
