"""accelerate() tells its parts apart by type and hands them back in the order given."""

import inspect
from typing import Any

import pytest
import torch
from refusal import refused
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
from gallery_lib.data.loading.device_loader import DeviceLoader


def parts() -> dict[str, Any]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "loader": DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "config": Config.plain(),
        "None": None,
    }


KINDS = {nn.Module: "model", DeviceLoader: "loader", torch.optim.Optimizer: "optimizer",
         type(None): "None", object: "scheduler"}  # fmt: skip


def kinds(returned: Any) -> str:
    """Return the kind of each thing that came back; a single one is no tuple."""
    returned = returned if isinstance(returned, tuple) else [returned]
    return " ".join(
        next(name for kind, name in KINDS.items() if isinstance(part, kind)) for part in returned
    )


@pytest.mark.parametrize(
    ("order", "returned"),
    [
        ("model", "model"),
        ("model config", "model"),
        ("model loader", "model loader"),
        ("model loader config", "model loader"),
        ("config loader model", "loader model"),
        ("model optimizer loader", "model optimizer loader"),
        ("model optimizer", "model optimizer"),
        ("optimizer loader scheduler model", "optimizer loader scheduler model"),
        ("model loader optimizer scheduler config", "model loader optimizer scheduler"),
        ("scheduler model config optimizer loader", "scheduler model optimizer loader"),
    ],
)
def test_any_order_comes_back_in_that_order(order, returned):
    given = parts()
    names = order.split()
    assert kinds(accelerate(*(given[name] for name in names))) == returned
    given = parts()
    by_name = accelerate(**{name: given[name] for name in names})
    assert kinds(by_name) == returned
    by_name = by_name if isinstance(by_name, tuple) else (by_name,)
    for name, part in zip([n for n in names if n != "config"], by_name, strict=True):
        assert name == "loader" or part is given[name]


@pytest.mark.parametrize(
    ("order", "returned"),
    [
        ("model None config", "model None"),
        ("model loader None", "model loader"),
        ("model None optimizer config", "model None optimizer"),
    ],
)
def test_what_is_left_out_keeps_its_place(order, returned):
    given = parts()
    assert kinds(accelerate(*(given.get(name) for name in order.split()))) == returned


def test_several_loaders_and_optimizers_come_back():
    given, loader = parts(), parts()["loader"]
    second = torch.optim.Adam([given["model"].bias])
    returned = accelerate(
        given["model"], given["loader"], loader, given["optimizer"], second, Config.plain()
    )
    assert kinds(returned) == "model loader loader optimizer optimizer"
    assert returned[1] is not returned[2]
    assert returned[3] is given["optimizer"] and returned[4] is second


@pytest.mark.parametrize(
    ("call", "parameter", "values"),
    [
        (lambda p: accelerate(), "model", ["torch.nn.Module"]),
        (lambda p: accelerate(p["loader"]), "model", ["torch.nn.Module"]),
        (lambda p: accelerate(p["model"], nn.Linear(1, 1)), "model", ["two", "once for each"]),
        (lambda p: accelerate(p["model"], p["config"], Config()), "config", ["two"]),
        (
            lambda p: accelerate(p["model"], p["loader"].dataset),
            None,
            ["got a TensorDataset", "into a torch.utils.data.DataLoader"],
        ),
        (lambda p: accelerate(p["model"], 3), None, ["got a int"]),
        (lambda p: accelerate(p["model"], "train"), None, ["got a str"]),
        (lambda p: accelerate(p["model"], {"bf16": True}), None, ["got a dict"]),
        (lambda p: accelerate(p["model"], torch.amp.GradScaler("cpu")), None, ["got a GradScaler"]),
        (lambda p: accelerate(p["model"], optimiser=1), "optimiser", ["`optimizer`"]),
        (
            lambda p: accelerate(p["model"], optimizer=p["loader"]),
            "optimizer",
            ["a DataLoader", "torch.optim.Optimizer"],
        ),
        (
            lambda p: accelerate(p["model"], torch.optim.SGD(nn.Linear(2, 2).parameters())),
            "optimizer",
            ["SGD", "model.parameters()"],
        ),
    ],
)
def test_a_part_that_is_none_of_these_is_refused_in_one_line(call, parameter, values):
    with refused(parameter, *values) as raised:
        call(parts())
    assert "\n" not in str(raised.value)


def test_help_shows_the_names():
    names = list(inspect.signature(accelerate).parameters)
    assert names == ["model", "loader", "optimizer", "scheduler", "config"]
