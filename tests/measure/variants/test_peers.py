"""The two forms of each peer: the best one has every feature, the other one has none.

Neither has anything of this backend.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib import optim
from gallery_lib.config import TrainConfig
from gallery_lib.measure.variants import peers, recipes
from gallery_lib.optim import OptimizerSpec, fused_cpu
from gallery_lib.optim.fused import Fused
from gallery_lib.optim.sync_free import SyncFree
from gallery_lib.train.recipe import Plain, Prepared

PEERS = [name for name in peers.MODULES if peers.missing(name) is None]


class Viewing(nn.Module):
    """Model that flattens by `.view`, which raises in channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return x.view(len(x), -1)


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the modes in which models were compiled; none is really compiled."""
    seen: list[str] = []

    def compile_in_place(module: nn.Module, *, mode: str = "default", **_: Any) -> None:
        seen.append(mode)

    def compile_model(model: nn.Module, *, mode: str = "default", **_: Any) -> nn.Module:
        seen.append(mode)
        return model

    monkeypatch.setattr(nn.Module, "compile", compile_in_place)
    monkeypatch.setattr(torch, "compile", compile_model)
    return seen


@pytest.fixture(autouse=True)
def a_fresh_process_where_convolutions_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset what Accelerate keeps from its first object in a process."""
    monkeypatch.setattr(recipes.hardware, "prefers_channels_last", lambda device_type: True)
    if "accelerate" in PEERS:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def prepared(
    words: list[str], optimizer: str = "AdamW", model: nn.Module | None = None
) -> Prepared:
    """Return a small convolutional model that the recipe of these words made ready."""
    model = model or nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    loader = torch.utils.data.DataLoader(torch.zeros(4, 3, 8, 8), batch_size=2, num_workers=1)  # type: ignore[arg-type]
    spec = OptimizerSpec(optimizer, lr=0.1)
    build_optimizer = functools.partial(
        spec.build, list(model.parameters()), lr=None, weight_decay=None
    )
    return recipes.recipe(words).prepare(Plain(model, loader, build_optimizer, TrainConfig(), None))


def torchs(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimizer itself, without the wrapper of a library."""
    return getattr(optimizer, "optimizer", optimizer)


def first_weight(made: Prepared) -> torch.Tensor:
    return next(p for p in made.model.parameters() if p.dim() == 4)


@pytest.mark.parametrize("peer", PEERS)
def test_as_it_comes_a_peer_has_torchs_plain_optimizer_and_layout_and_the_default_mode(
    peer: str, modes: list[str]
) -> None:
    made = prepared([peer])
    assert optim.kind(torchs(made.optimizer)) == "torch's own"
    assert first_weight(made).is_contiguous()
    assert made.loader.memory_format is torch.contiguous_format
    assert set(modes) <= {"default"}
    assert not {"layout", "allocator", "optimizer"} & set(made.techniques)


@pytest.mark.parametrize("peer", PEERS)
def test_at_its_best_a_peer_has_torchs_fused_optimizer_channels_last_and_the_mode_that_was_found(
    peer: str, modes: list[str]
) -> None:
    made = prepared(recipes.best_form(peer, "max-autotune"))
    assert torchs(made.optimizer).defaults["fused"] is True
    assert first_weight(made).is_contiguous(memory_format=torch.channels_last)
    assert made.loader.memory_format is torch.channels_last
    assert (
        made.techniques["optimizer"] == "AdamW, torch's fused form"
        and made.techniques["layout"] == "channels_last"
    )
    if peer == peers.EAGER:
        assert modes == [] and "compiler" not in made.techniques
    else:
        assert modes == ["max-autotune"] and made.techniques["compiler"].endswith(
            "mode max-autotune"
        )


@pytest.mark.parametrize("peer", PEERS)
def test_no_form_of_a_peer_has_anything_of_this_backend(peer: str, modes: list[str]) -> None:
    for words in ([peer], recipes.best_form(peer)):
        made = prepared(words, "SGD")
        assert not isinstance(torchs(made.optimizer), fused_cpu.OnePass | SyncFree | Fused)
        assert made.loader.niceness == 0
        assert not made.kernels


@pytest.mark.parametrize("name", ["RMSprop", "RAdam"])
def test_where_torch_has_no_fused_form_the_best_form_has_the_optimizer_as_it_comes_and_says_so(
    name: str,
) -> None:
    made = prepared(recipes.best_form(peers.EAGER), name)
    assert (
        type(made.optimizer) is getattr(torch.optim, name)
        and optim.kind(made.optimizer) == "torch's own"
    )
    assert made.techniques["optimizer"] == f"{name} as it comes: torch has no fused form of it"


def test_a_model_without_convolutions_has_no_layout_and_one_that_needs_strides_stays_contiguous() -> (  # noqa: E501
    None
):
    assert (
        "layout" not in prepared(recipes.best_form(peers.EAGER), model=nn.Linear(8, 2)).techniques
    )
    made = prepared(recipes.best_form(peers.EAGER), model=Viewing())
    assert made.techniques["layout"].startswith("contiguous: ")
    made.model(torch.zeros(2, 3, 8, 8))


def test_only_the_best_form_is_started_with_glibc_told_to_keep_large_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers.allocator, "reason_not_applied", lambda: None)
    monkeypatch.setattr(recipes.hardware, "device_type", lambda: "cpu")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    for peer in peers.MODULES:
        assert "GLIBC_TUNABLES" not in recipes.variables_of([peer])
        assert (
            recipes.variables_of(recipes.best_form(peer))["GLIBC_TUNABLES"]
            == peers.allocator.allocator_variables()["GLIBC_TUNABLES"]
        )
    monkeypatch.setattr(recipes.hardware, "device_type", lambda: "cuda")
    assert "GLIBC_TUNABLES" not in recipes.variables_of(recipes.best_form("fabric"))


def test_the_best_form_says_what_became_of_the_allocator_in_words_that_the_interval_goes_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers.allocator, "reason_not_applied", lambda: None)
    for tunables, said in (
        ("glibc.malloc.mmap_threshold=1", peers.allocator.KEEPS),
        ("", "not applied: "),
    ):
        monkeypatch.setenv("GLIBC_TUNABLES", tunables)
        assert prepared(recipes.best_form(peers.EAGER)).techniques["allocator"].startswith(said)
