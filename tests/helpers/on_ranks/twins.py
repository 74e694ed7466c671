"""What accelerate() returns on several processes: models (names, copies, refusals), schedules."""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distributed
from on_ranks.models import DDP, message_of


class Net(nn.Module):
    """Model with an encoder and two heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head, self.probe = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return self.head(hidden), self.probe(hidden.detach())


def inputs() -> Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(dist.get_rank()))


def one_loss(model: Any) -> None:
    head, probe = model(inputs())
    (head.sum() + probe.square().sum()).backward()


def _twin(net: nn.Module) -> Any:
    return accelerate(net, None, Config.plain())[0]


def refusals() -> list[str]:
    """Return the messages for models and passes that several processes of a CPU cannot train."""
    models = (nn.LazyLinear(3), nn.SyncBatchNorm(3), DDP(nn.Linear(1, 1)))
    said = [message_of(lambda model=model: _twin(model)) for model in models]
    twin = _twin(Net())
    said.append(message_of(lambda: twin.head(twin.encoder(inputs())).sum().backward()))
    return said


def around_the_model_on_purpose() -> bool:
    """Return whether a gradient from a part of the model is each rank's own inside no_sync."""
    twin, alone = _twin(Net()), Net()
    with twin.no_sync():
        twin.head(twin.encoder(inputs())).sum().backward()
    alone.head(alone.encoder(inputs())).sum().backward()
    return torch.equal(twin.encoder.weight.grad, alone.encoder.weight.grad)


def heads_in_turn() -> list[bool]:
    """Return whether each of several heads, put in one after another, is alike on all ranks.

    So are their gradients, since they are averaged. The ids of the heads are used again.
    """
    twin, alike = _twin(Net()), []
    for number in range(6):
        torch.manual_seed(100 * dist.get_rank() + number)
        twin.head = nn.Linear(4, 1)
        one_loss(twin)
        for own in (twin.head.weight.detach(), twin.encoder.weight.grad, twin.head.weight.grad):
            alike.append(all(own.equal(other) for other in process_group.all_ranks(own)))
        twin.zero_grad()
    return alike


def after_an_error() -> str:
    """Return the message of the call after a backward pass that raised."""

    def fails(gradient: Tensor) -> Tensor:
        raise KeyError

    twin = _twin(Net())
    head, probe = twin(inputs())
    head.register_hook(fails)
    with contextlib.suppress(KeyError):
        (head.sum() + probe.sum()).backward()
    return message_of(lambda: one_loss(twin))


def facts() -> dict[str, Any]:
    """Return what a twin looks like from outside, beside what every case of against_torch compares.

    Those are keys, names, type, mode and calls of hooks.
    """
    net = Net()
    twin = _twin(net)
    one_loss(twin)
    copied = copy.deepcopy(twin)
    averaged = torch.optim.swa_utils.AveragedModel(twin)
    averaged.update_parameters(twin)
    checkpoint = get_model_state_dict(twin)
    set_model_state_dict(twin, checkpoint)
    return {
        "checkpoint": list(checkpoint) == list(net.state_dict()),
        "module": twin.module is net,
        "device": str(twin.device),
        "copy": (type(copied) is Net, distributed(copied) is None),
        "pickled": type(copy.copy(twin)) is Net,
        "averaged": averaged.module.encoder.weight.equal(twin.encoder.weight),
        "attributes": twin.encoder is net.encoder,
    }


def evaluated_on_rank_0_alone() -> int:
    """Return how many rows rank 0 evaluates alone: the model itself communicates with nobody."""
    twin = _twin(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    twin(inputs()).sum().backward()
    twin.eval()
    with torch.no_grad():
        rows = 0 if dist.get_rank() else len(twin.module(inputs()))
    dist.barrier()
    return rows


def schedule_note(kind: str, batches: int, options: dict[str, Any]) -> tuple[str | None, list[str]]:
    """Return what accelerate() notes of a scheduler for the undivided loader, and its lines."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = getattr(lr_scheduler, kind)(optimizer, **options)
    loader = DataLoader(TensorDataset(torch.ones(batches * 3, 2)), batch_size=3)
    config = Config()
    config.compiler.enabled = False
    with contextlib.redirect_stderr(io.StringIO()) as said:
        model, *_ = accelerate(model, loader, optimizer, scheduler, config)
    return techniques(model).get("schedule"), said.getvalue().splitlines()
