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
from against_torch.case import Case
from against_torch.launches import Server
from against_torch.run import ROUNDED, SAME, run
from small_models import image_model
from torch import nn
from torch._dynamo import config as dynamo
from torch._inductor import config as inductor

from gallery_lib.compiler import torch_backend
from gallery_lib.compiler.passes.graph_pass import Passes
from gallery_lib.optim import fused_cpu

pytestmark = pytest.mark.slow


@pytest.fixture
def plug() -> Iterator[ModuleType]:
    """Return the module, switched on for this test alone: the import switches it on."""
    torch._dynamo.reset()
    module = importlib.import_module("gallery_lib.plug")
    module.on()
    yield module
    module.off()


@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_training_is_plain_torchs(optimizer: str) -> None:
    names = {"launch": "plug", "config": "inductor", "optimizer": optimizer, "scheduler": "step"}
    verdict = run(Case(model="batch_norm", **names), Server())
    assert verdict.outcome in (SAME, ROUNDED), verdict.lines


def train_step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    network(torch.randn(6, 3, 8, 8)).square().mean().backward()
    optimizer.step()


def test_an_optimizer_takes_its_fast_form_after_its_first_step_and_gives_it_back(
    plug: ModuleType,
) -> None:
    trained = image_model()
    optimizer = torch.optim.AdamW(trained.parameters())
    train_step(trained, optimizer)
    assert type(optimizer) is fused_cpu.AdamW
    state = copy.deepcopy(optimizer.state_dict())
    plug.off()
    assert type(optimizer) is torch.optim.AdamW
    assert str(optimizer.state_dict()) == str(state)
    train_step(trained, optimizer)
    assert type(optimizer) is torch.optim.AdamW, "off() left a hook"


def test_passes_of_others_stay_in_front_and_come_back(plug: ModuleType) -> None:
    plug.off()
    seen: list[Any] = []
    theirs = seen.append
    with inductor.patch(post_grad_custom_post_pass=theirs):
        plug.on()
        torch.compile(image_model())(torch.randn(2, 3, 8, 8)).sum().backward()
        assert len(seen) == 2  # forward and backward pass
        plug.off()
        assert inductor.post_grad_custom_post_pass is theirs
    assert inductor.pre_grad_custom_pass is None


@pytest.mark.skipif(
    not hasattr(dynamo, "automatic_dynamic_exclusion_guard"), reason="torch has no such guard"
)
def test_a_smaller_last_batch_leaves_the_others_their_graph(plug: ModuleType) -> None:
    torch._dynamo.reset()
    ran = []

    def compiler(graph: Any, examples: list[Any]) -> Any:
        shared = any(isinstance(one, torch.SymInt) for one in examples)
        return lambda *arguments: ran.append(shared) or graph.forward(*arguments)

    model = torch.compile(nn.Linear(4, 2), backend=compiler)
    for size in 2 * (8, 8, 5):
        model(torch.ones(size, 4))
    assert ran == 2 * [False, False, True]
    torch._dynamo.reset()


def test_graphs_of_another_device_are_left_as_they_are() -> None:
    passes = torch_backend.inductor_options("cpu")["post_grad_custom_post_pass"].passes
    ours = Passes(passes, "cuda")
    graph = torch.fx.symbolic_trace(image_model()).graph
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
