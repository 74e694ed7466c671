"""Models that accelerate() returns on several processes: names, gradients, copies, refusals.

Gradients come by every road (ROADS).
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from gallery_lib import Config, accelerate
from gallery_lib.comm.ddp import distributed
from on_ranks.models import DDP, message_of


class Net(nn.Module):
    """Model with an encoder and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.probe = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return self.head(hidden), self.probe(hidden.detach())


def net_of_two_heads() -> Net:
    torch.manual_seed(0)
    return Net()


def inputs(rank: int | None = None, call: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(
        10 * call + (dist.get_rank() if rank is None else rank)
    )
    return torch.randn(5, 3, generator=generator)


def one_loss(model: Any, rank: int | None) -> None:
    head, probe = model(inputs(rank))
    (head.sum() + probe.square().sum()).backward()


def two_backward_passes(model: Any, rank: int | None) -> None:
    head, probe = model(inputs(rank))
    head.sum().backward()  # encoder and head
    probe.square().sum().backward()  # the probe alone


def two_calls_two_losses(model: Any, rank: int | None) -> None:
    losses = [sum(out.square().sum() for out in model(inputs(rank, call))) for call in range(2)]
    for loss in losses:
        loss.backward()


def the_same_graph_twice(model: Any, rank: int | None) -> None:
    loss = sum(out.square().sum() for out in model(inputs(rank)))
    loss.backward(retain_graph=True)
    loss.backward()


def accumulated(model: Any, rank: int | None) -> None:
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        one_loss(model, rank)
    one_loss(model, rank)


def unfrozen_later(model: Any, rank: int | None) -> None:
    model.encoder.requires_grad_(False)
    one_loss(model, rank)
    model.encoder.requires_grad_(True)
    model.zero_grad()
    one_loss(model, rank)


def frozen_later(model: Any, rank: int | None) -> None:
    one_loss(model, rank)
    model.zero_grad()
    model.encoder.requires_grad_(False)
    one_loss(model, rank)


def gradient_penalty(model: Any, rank: int | None) -> None:
    x = inputs(rank).requires_grad_()
    head, probe = model(x)
    (slope,) = torch.autograd.grad(head.square().sum(), x, create_graph=True)
    (slope.square().sum() + head.sum() + probe.sum()).backward()


def laid_out_anew(model: Any, rank: int | None) -> None:
    model.to(torch.float64 if model.head.weight.dtype is torch.float32 else torch.float32)
    with torch.no_grad():
        model.encoder.weight.set_(model.encoder.weight.T.contiguous().T)
    x = inputs(rank).to(model.head.weight.dtype)
    sum(out.square().sum() for out in model(x)).backward()
    for parameter in model.parameters():
        parameter.grad = None
    sum(out.square().sum() for out in model(x)).backward()


ROADS = {
    road.__name__: road
    for road in (
        one_loss,
        two_backward_passes,
        two_calls_two_losses,
        the_same_graph_twice,
        accumulated,
        unfrozen_later,
        frozen_later,
        gradient_penalty,
        laid_out_anew,
    )
}


def _twin(net: nn.Module, **comm: Any) -> Any:
    config = Config.plain()
    for name, value in comm.items():
        setattr(config.comm, name, value)
    return accelerate(net, None, config)[0]


def _worst(step: Callable[[Any, int | None], None]) -> float:
    """Return the largest difference of the twin's gradients from the mean over ranks.

    The mean is of what each rank's gradients would be alone.
    """
    twin = _twin(net_of_two_heads())
    alone = [net_of_two_heads() for _ in range(dist.get_world_size())]
    for _ in range(3):
        twin.zero_grad()
        step(twin, None)
    for rank, model in enumerate(alone):
        step(model, rank)
    worst = 0.0
    for name, parameter in twin.named_parameters():
        zeros = torch.zeros_like(parameter)
        own = [dict(model.named_parameters())[name].grad for model in alone]
        mean = torch.stack([zeros if g is None else g for g in own]).mean(0)
        got = zeros if parameter.grad is None else parameter.grad
        worst = max(worst, (got - mean).abs().max().item())
    return worst


def gradients(road: str) -> float:
    """Return the largest difference of gradients that come by `road` (see `_worst`)."""
    return _worst(ROADS[road])


def replaced_head() -> float:
    """Return the largest difference of gradients for a head that is put in after accelerate().

    The head has other values on each rank.
    """

    def step(model: Any, rank: int | None) -> None:
        torch.manual_seed(7 + (0 if rank is not None else dist.get_rank()))
        model.head = nn.Linear(4, 1)
        one_loss(model, rank)

    return _worst(step)


def refusals() -> list[str]:
    """Return the messages for models and passes that several processes of a CPU cannot train."""
    models = (nn.LazyLinear(3), nn.SyncBatchNorm(3), DDP(nn.Linear(1, 1)))
    said = [
        message_of(lambda model=model: accelerate(model, None, Config.plain())) for model in models
    ]
    twin = _twin(net_of_two_heads())
    said.append(message_of(lambda: twin.head(twin.encoder(inputs())).sum().backward()))
    return said


def around_the_model_on_purpose() -> bool:
    """Return whether a gradient from a part of the model is each rank's own inside no_sync."""
    twin, alone = _twin(net_of_two_heads()), net_of_two_heads()
    with twin.no_sync():
        twin.head(twin.encoder(inputs())).sum().backward()
    alone.head(alone.encoder(inputs())).sum().backward()
    return torch.equal(twin.encoder.weight.grad, alone.encoder.weight.grad)


def heads_in_turn() -> list[bool]:
    """Return whether each of several heads, put in one after another, starts alike on all ranks.

    The ids of the heads are used again.
    """
    twin = _twin(net_of_two_heads())
    alike = []
    for number in range(6):
        torch.manual_seed(100 * dist.get_rank() + number)
        twin.head = nn.Linear(4, 1)
        one_loss(twin, None)
        twin.zero_grad()
        values = [torch.zeros_like(twin.head.weight) for _ in range(dist.get_world_size())]
        dist.all_gather(values, twin.head.weight.detach())
        alike.append(all(torch.equal(value, values[0]) for value in values))
    return alike


def after_an_error() -> str:
    """Return the message of the call after a backward pass that raised."""

    def fails(gradient: Tensor) -> Tensor:
        raise KeyError

    twin = _twin(net_of_two_heads())
    head, probe = twin(inputs())
    handle = head.register_hook(fails)
    with contextlib.suppress(KeyError):
        (head.sum() + probe.sum()).backward()
    handle.remove()
    return message_of(lambda: one_loss(twin, None))


class Unused(nn.Module):
    """Model that computes `probe` and leaves it out of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.probe = nn.Linear(3, 4), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        encoded, _ = self.encoder(x), self.probe(x)
        return encoded


def unused(how: str, find: bool) -> tuple[str, bool]:
    """Return the message of steps in which `probe` is not part of the loss.

    The second value is whether no weight has changed, or, where nothing was raised, whether `probe`
    has not and has no gradient.
    """
    model = Unused() if how == "compiled" else net_of_two_heads()
    if how == "compiled":
        model.compile(backend="aot_eager")
    twin = _twin(model, find_unused_parameters=find)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=0.1)
    before = copy.deepcopy(twin)

    def loss() -> Any:
        output = twin(inputs())
        return output if how == "compiled" else output[0]

    def run() -> None:
        if how == "two calls":
            loss().sum().backward()
            loss().sum().backward()
        elif how == "two backward passes":
            output = loss()
            output.sum().backward(retain_graph=True)
            output.square().sum().backward()
        elif how == "closure":
            optimizer.step(lambda: loss().sum().backward())
        else:
            loss().sum().backward()
            optimizer.step()

    message = message_of(run)
    same = torch.equal(before.probe.weight, twin.probe.weight)
    if find:
        return message, same and twin.probe.weight.grad is None
    return message, same and (
        how == "closure" or torch.equal(before.encoder.weight, twin.encoder.weight)
    )


def two_losses_before_a_step() -> bool:
    """Return whether a step is taken after two backward passes that reach all parameters."""
    twin = _twin(net_of_two_heads())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    first, second = twin(inputs())
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    optimizer.step()
    return True


def facts() -> dict[str, Any]:
    """Return what a twin looks like from outside."""
    net = net_of_two_heads()
    twin = _twin(net)
    calls: list[int] = []
    twin.register_forward_hook(lambda *_: calls.append(1))
    one_loss(twin, None)
    copied = copy.deepcopy(twin)
    stored = io.BytesIO()
    torch.save(twin.state_dict(), stored)
    averaged = torch.optim.swa_utils.AveragedModel(twin)
    averaged.update_parameters(twin)
    checkpoint = get_model_state_dict(twin)
    set_model_state_dict(twin, checkpoint)
    return {
        "type": (isinstance(twin, Net), type(twin).__name__),
        "keys": list(twin.state_dict()),
        "names": [name for name, _ in twin.named_parameters()],
        "checkpoint": list(checkpoint),
        "module": twin.module is net,
        "device": str(twin.device),
        "parameters": all(a is b for a, b in zip(twin.parameters(), net.parameters(), strict=True)),
        "copy": (type(copied) is Net, distributed(copied) is None),
        "pickled": type(copy.copy(twin)) is Net,
        "averaged": averaged.module.encoder.weight.equal(twin.encoder.weight),
        "hook calls": len(calls),
        "attributes": twin.encoder is net.encoder,
        "training": (twin.eval().training, net.training, twin.train().training),
    }


def evaluated_on_rank_0_alone() -> int:
    """Return how many rows rank 0 evaluates alone: the model itself communicates with nobody."""
    twin = _twin(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    twin(inputs()).sum().backward()
    twin.eval()
    rows = 0
    if dist.get_rank() == 0:
        with torch.no_grad():
            rows = twin.module(inputs()).shape[0]
    dist.barrier()
    return rows
