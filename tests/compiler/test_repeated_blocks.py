"""compiler/repeated_blocks.py: repeated blocks are compiled once and keep their own weights."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch._dynamo.utils import counters

from gallery_lib.compiler import repeated_blocks
from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler

WIDTH, BLOCKS = 8, 12  # more blocks than Dynamo compiles variants of one function


class Block(nn.Module):
    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inner(x))


class Numbered(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.number


class Model(nn.Module):
    def __init__(self, kind: type[Block] = Block) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
        self.blocks = nn.ModuleList(kind(number + 1) for number in range(BLOCKS))
        self.after = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    return {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def test_repeated_blocks_are_found_with_what_is_around_them() -> None:
    model = Model()
    found = repeated_blocks.find(model)
    assert found is not None
    assert (
        found.groups == (tuple(model.blocks),)
        and found.around == (model.before,)
        and found.blocks == BLOCKS
    )


def test_a_model_whose_blocks_differ_or_are_a_small_part_is_compiled_as_one() -> None:
    assert repeated_blocks.find(torchvision.models.resnet18()) is None
    wide = Model()
    wide.after = nn.Linear(WIDTH, 10_000)
    assert repeated_blocks.find(wide) is None
    frozen = Model()
    frozen.blocks[5].requires_grad_(False)
    assert repeated_blocks.find(frozen) is None


def test_both_halves_of_an_encoder_and_decoder_are_found() -> None:
    model = torch.nn.Transformer(
        d_model=8, nhead=2, num_encoder_layers=3, num_decoder_layers=4, dim_feedforward=8
    )
    found = repeated_blocks.find(model)
    assert found is not None and sorted(len(group) for group in found.groups) == [3, 4]


@pytest.mark.slow
def test_every_block_computes_with_its_own_weights_and_all_share_one_graph() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 4)
    expected = gradients(copy.deepcopy(model), x)
    keys = list(model.state_dict())
    found = repeated_blocks.find(model)
    assert found is not None
    with warnings.catch_warnings(record=True) as said:
        repeated_blocks.compile_regions(model, found, backend="aot_eager")
        for _ in range(2):
            got = gradients(model, x)
            assert (
                got.keys() == expected.keys()
                and len({block.inner.weight.grad.sum().item() for block in model.blocks}) == BLOCKS
            )
            for name, gradient in expected.items():
                torch.testing.assert_close(got[name], gradient)
    assert not [each for each in said if "repeated blocks" in str(each.message)]
    assert counters["stats"]["unique_graphs"] == 2  # what comes before the blocks, and a block
    assert list(model.state_dict()) == keys


@pytest.mark.slow
def test_another_length_compiles_a_block_once_more_and_not_each() -> None:
    torch.manual_seed(0)
    model = Model()
    found = repeated_blocks.find(model)
    assert found is not None
    repeated_blocks.compile_regions(model, found, backend="aot_eager")
    for rows in (3, 5, 6, 9):
        x = torch.randn(rows, 4)
        expected = gradients(copy.deepcopy(model), x)
        for name, gradient in gradients(model, x).items():
            torch.testing.assert_close(gradient, expected[name])
    assert counters["stats"]["unique_graphs"] == 4


@pytest.mark.slow
def test_blocks_that_do_not_share_code_are_said_and_the_model_is_compiled_as_one() -> None:
    torch.manual_seed(0)
    model, x = Model(Numbered), torch.randn(3, 4) * 1e-3
    expected = gradients(copy.deepcopy(model), x)
    found = repeated_blocks.find(model)
    assert found is not None
    repeated_blocks.compile_regions(model, found, backend="aot_eager")
    with pytest.warns(UserWarning, match="Model's repeated blocks do not share what is compiled"):
        first = gradients(model, x)
    assert counters["stats"]["unique_graphs"] == 1 + BLOCKS  # none fell back to running as it is
    counters.clear()
    for got in (first, gradients(model, x)):
        for name, gradient in expected.items():
            torch.testing.assert_close(got[name], gradient)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_a_call_that_compiles_nothing_leaves_the_watch_to_the_next() -> None:
    model, x = Model(Numbered), torch.randn(3, 4)
    found = repeated_blocks.find(model)
    assert found is not None
    repeated_blocks.compile_regions(model, found, backend="aot_eager")
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        model(x)
    with pytest.warns(UserWarning, match="do not share"):
        model(x)


def test_it_is_done_when_asked_for() -> None:
    cpu = torch.device("cpu")
    assert f"{BLOCKS} repeated blocks compiled once" in compile_model(
        Model(), Compiler(repeated_blocks_once=True), cpu
    )
    assert "repeated" not in compile_model(Model(), Compiler(), cpu)
    assert "most of the model is not repeated" in compile_model(
        nn.Linear(2, 2), Compiler(repeated_blocks_once=True), cpu
    )
