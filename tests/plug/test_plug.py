"""`import gallery_lib.plug`: what it sets, what training it gives, and that it can be undone."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from acceleration.small_model import model
from torch._inductor import config as inductor

from gallery_lib.compiler import torch_backend
from gallery_lib.compiler.passes.graph_pass import Passes
from gallery_lib.optim import fused_cpu

pytestmark = pytest.mark.slow

KINDS: dict[type, dict[str, Any]] = {
    torch.optim.AdamW: {"lr": 1e-3},
    torch.optim.SGD: {"lr": 1e-2, "momentum": 0.9},
}


@pytest.fixture
def plug() -> Iterator[ModuleType]:
    """Return the module, switched on for this test alone: the import switches it on."""
    torch._dynamo.reset()
    module = importlib.import_module("gallery_lib.plug")
    module.on()
    yield module
    module.off()


def _train(call: Any, optimizer: torch.optim.Optimizer, steps: int = 5) -> list[float]:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        images = torch.randn(6, 3, 8, 8, generator=generator)
        optimizer.zero_grad()
        loss = call(images).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_plain_torchs(plug: ModuleType, kind: type[torch.optim.Optimizer]) -> None:
    ours = model()
    plain = copy.deepcopy(ours)
    optimizer = kind(ours.parameters(), **KINDS[kind])
    losses = _train(torch.compile(ours), optimizer)
    plug.off()
    torch._dynamo.reset()
    wanted = kind(plain.parameters(), **KINDS[kind])
    torch.testing.assert_close(losses, _train(plain, wanted), rtol=1e-5, atol=1e-6)
    assert type(wanted) is kind, "off() left a hook"


def test_an_optimizer_takes_its_fast_form_after_its_first_step_and_gives_it_back(
    plug: ModuleType,
) -> None:
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    _train(trained, optimizer, steps=1)
    assert type(optimizer) is fused_cpu.AdamW
    state = copy.deepcopy(optimizer.state_dict())
    plug.off()
    assert type(optimizer) is torch.optim.AdamW
    assert str(optimizer.state_dict()) == str(state)
    _train(trained, optimizer, steps=1)


def test_passes_of_others_stay_in_front_and_come_back(plug: ModuleType) -> None:
    plug.off()
    seen: list[Any] = []
    theirs = seen.append
    with inductor.patch(post_grad_custom_post_pass=theirs):
        plug.on()
        torch.compile(model())(torch.randn(2, 3, 8, 8)).sum().backward()
        assert len(seen) == 2  # forward and backward pass
        plug.off()
        assert inductor.post_grad_custom_post_pass is theirs
    assert inductor.pre_grad_custom_pass is None


def test_graphs_of_another_device_are_left_as_they_are() -> None:
    passes = torch_backend.inductor_options("cpu")["post_grad_custom_post_pass"].passes
    ours = Passes(passes, "cuda")
    graph = torch.fx.symbolic_trace(model()).graph
    for node in graph.nodes:
        node.meta["val"] = torch.ones(1)
    before = str(graph)
    ours(graph)
    assert str(graph) == before


def test_the_import_says_one_line_and_torch_alone_is_left_alone() -> None:
    code = (
        "import torch, torch._inductor.config as c; before = c.get_config_copy();{} "
        "print(before == c.get_config_copy())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code.format(line)], capture_output=True, text=True, check=True
        )
        for line in ("", " import gallery_lib;", " import gallery_lib.plug;")
    ]
    assert [one.stdout for one in said] == ["True\n", "True\n", "False\n"]
    assert [one.stderr.count("gallery_lib.plug") for one in said] == [0, 0, 2]
    assert said[2].stderr.count("\n") == 1
