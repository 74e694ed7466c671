"""Models that accelerate() returns on several processes: names, gradients, copies, refusals.

Gradients come by every road (ROADS).
"""

from __future__ import annotations

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
from on_ranks.roads import ROADS, Net, inputs, net_of_two_heads, one_loss


def _twin(net: nn.Module, **comm: Any) -> Any:
    config = Config.plain()
    for name, value in comm.items():
        setattr(config.comm, name, value)
    return accelerate(net, None, config)[0]


def _worst(
    step: Callable[[Any, int | None], None],
    make: Callable[[], nn.Module] = net_of_two_heads,
    **comm: Any,
) -> float:
    """Return the largest difference of the twin's gradients from the mean over ranks.

    The mean is of what each rank's gradients would be alone.
    """
    net = make()
    twin = _twin(net, **comm)
    alone = [make() for _ in range(dist.get_world_size())]
    for _ in range(3):
        twin.zero_grad()
        step(twin, None)
    for rank, model in enumerate(alone):
        step(model, rank)
    worst = 0.0
    for name, parameter in twin.named_parameters():
        gradients = [dict(model.named_parameters())[name].grad for model in alone]
        if any(gradient is not None for gradient in gradients):
            mean = torch.stack(
                [g if g is not None else torch.zeros_like(parameter) for g in gradients]
            ).mean(0)
            worst = max(worst, (parameter.grad - mean).abs().max().item())
        elif parameter.grad is not None:
            worst = max(worst, parameter.grad.abs().max().item())
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
    """Return the messages for models that several processes of a CPU cannot train."""
    said = []
    for model in (
        nn.LazyLinear(3),
        nn.SyncBatchNorm(3),
        nn.parallel.DistributedDataParallel(nn.Linear(1, 1)),
    ):
        try:
            accelerate(model, None, Config.plain())
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def around_the_model() -> str:
    """Return the message for a gradient that comes from a part of the model, around its forward."""
    twin = _twin(net_of_two_heads())
    try:
        twin.head(twin.encoder(inputs())).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def around_the_model_on_purpose() -> bool:
    """Return whether a gradient from a part of the model is each rank's own inside no_sync."""
    twin = _twin(net_of_two_heads())
    with twin.no_sync():
        twin.head(twin.encoder(inputs())).sum().backward()
    alone = net_of_two_heads()
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
    try:
        (head.sum() + probe.sum()).backward()
    except KeyError:
        handle.remove()
    try:
        one_loss(twin, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def unused(find: bool) -> list[Any]:
    """Return the result of two steps in which `probe` is not part of the loss."""
    twin = _twin(net_of_two_heads(), find_unused_parameters=find)
    try:
        for _ in range(2):
            twin(inputs())[0].sum().backward()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [twin.probe.weight.grad is None, twin.encoder.weight.grad is not None]


def unused_in_two_backward_passes(find: bool) -> list[Any]:
    """Return the result of two backward passes of one call, neither of which reaches `probe`."""
    twin = _twin(net_of_two_heads(), find_unused_parameters=find)
    output = twin(inputs())[0]
    try:
        output.sum().backward(retain_graph=True)
        output.square().sum().backward()
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return [twin.probe.weight.grad is None, twin.encoder.weight.grad is not None]


def unused_in_a_compiled_graph(find: bool) -> list[Any]:
    """Return the result of a step that computes `probe` in a compiled graph but in no output."""

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.probe = nn.Linear(3, 4), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            encoded, _ = self.encoder(x), self.probe(x)
            return encoded

    model = Unused()
    model.compile(backend="aot_eager")
    twin = _twin(model, find_unused_parameters=find)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, weight_decay=0.1)
    before = twin.probe.weight.detach().clone()
    try:
        twin(inputs()).sum().backward()
        optimizer.step()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", torch.equal(before, twin.probe.weight)]
    return [twin.probe.weight.grad is None, torch.equal(before, twin.probe.weight)]


def step_on_unaveraged_gradients(closure: bool) -> list[Any]:
    """Return the message of a step that leaves `probe` out, and whether weights are unchanged."""
    twin = _twin(net_of_two_heads())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    before = twin.encoder.weight.detach().clone()

    def evaluate() -> Any:
        twin(inputs())[0].sum().backward()

    try:
        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", bool(torch.equal(twin.encoder.weight, before))]
    return ["no error", False]


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
