"""The peers, with nothing of this backend, and each technique of ours alone."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib import optim
from gallery_lib.config import TrainConfig
from gallery_lib.data.loading import device_loader
from gallery_lib.measure import variants
from gallery_lib.measure.bench_result import GRAPHS
from gallery_lib.optim import OptimizerSpec, fused_cpu
from gallery_lib.optim.sync_free import SyncFree
from gallery_lib.train.session import Plain, Prepared

PEERS = [name for name in variants.MODULES if variants.missing(name) is None]


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

    def compile_model(model: nn.Module, *, mode: str = "default", **_: Any) -> nn.Module:
        seen.append(mode)
        return model

    monkeypatch.setattr(nn.Module, "compile", compile_model)
    monkeypatch.setattr(torch, "compile", compile_model)
    return seen


@pytest.fixture(autouse=True)
def a_fresh_process_where_convolutions_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset what Accelerate keeps from its first object in a process."""
    monkeypatch.setattr(variants.hardware, "prefers_channels_last", lambda device_type: True)
    if "accelerate" in PEERS:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def prepared(
    words: list[str], optimizer: str = "AdamW", model: nn.Module | None = None
) -> Prepared:
    """Return a small convolutional model that the recipe of these words made ready."""
    model = model or nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    loader = torch.utils.data.DataLoader(torch.zeros(4, 3, 8, 8), batch_size=2, num_workers=1)  # type: ignore[arg-type]
    build = functools.partial(
        OptimizerSpec(optimizer, lr=0.1).build, list(model.parameters()), lr=None, weight_decay=None
    )
    return variants.recipe(words).prepare(Plain(model, loader, build, TrainConfig(), None))


def first_weight(made: Prepared) -> torch.Tensor:
    return next(p for p in made.model.parameters() if p.dim() == 4)


@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_has_torchs_fused_optimizer_and_channels_last_and_nothing_of_this_backend(
    peer: str, modes: list[str]
) -> None:
    made = prepared([peer])
    optimizer = getattr(made.optimizer, "optimizer", made.optimizer)  # without a library's wrapper
    assert not isinstance(optimizer, fused_cpu.OnePass | SyncFree) and optimizer.defaults["fused"]
    assert made.loader.niceness == 0 and not made.kernels
    assert first_weight(made).is_contiguous(memory_format=torch.channels_last)
    assert made.loader.memory_format is torch.channels_last
    assert made.techniques["optimizer"] == "AdamW, torch's fused form"
    assert made.techniques["layout"] == "channels_last"
    assert modes == ([] if peer == "eager-best" else ["default"])
    assert (peer == "eager-best") == ("compiler" not in made.techniques)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("peer", "mode", "ahead"),
    [
        ("eager-best", [], [2]),
        ("torch.compile-best", ["default"], [2]),
        ("reduce-overhead-best", ["reduce-overhead"], [2]),
        ("max-autotune-best", ["max-autotune"], [2]),
        ("accelerate-best", ["default"], []),
        ("fabric-best", ["default"], []),
    ],
)
def test_on_a_gpu_a_peer_has_what_ours_has_of_torch(
    peer: str,
    mode: list[str],
    ahead: list[int],
    modes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if missing := variants.missing(peer):
        pytest.skip(missing)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    depths: list[int] = []

    class Seen(device_loader.CopiedAhead):
        def __init__(self, batches: Any, device: torch.device, depth: int) -> None:
            depths.append(depth)
            super().__init__(batches, device, depth)

    monkeypatch.setattr(device_loader, "CopiedAhead", Seen)
    made = prepared([peer])
    assert torch.backends.cudnn.benchmark and "cuDNN" in made.techniques
    assert [batch.device.type for batch in made.loader] == ["cuda", "cuda"]
    assert (modes, depths) == (mode, ahead)
    assert all(f"mode {name}" in made.techniques["compiler"] for name in mode if peer in GRAPHS)


def test_where_torch_has_no_fused_form_a_peer_has_the_optimizer_as_it_comes() -> None:
    made = prepared(["eager-best"], "RMSprop")
    assert optim.kind(made.optimizer) == "torch's own"
    assert made.techniques["optimizer"] == "RMSprop as it comes: torch has no fused form of it"


def test_a_model_without_convolutions_or_that_needs_strides_stays_contiguous() -> None:
    assert "layout" not in prepared(["eager-best"], model=nn.Linear(8, 2)).techniques
    made = prepared(["eager-best"], model=Viewing())
    assert made.techniques["layout"].startswith("contiguous: ")
    made.model(torch.zeros(2, 3, 8, 8))


def test_a_peer_is_started_with_glibc_told_to_keep_large_blocks_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, name = variants.memory, "GLIBC_TUNABLES"
    monkeypatch.setattr(memory, "reason_not_applied", lambda: None)
    monkeypatch.setattr(variants.hardware, "device_type", lambda: "cpu")
    monkeypatch.delenv(name, raising=False)
    for peer in variants.MODULES:
        assert variants.variables_of([peer])[name] == memory.allocator_variables()[name]
    assert name not in variants.variables_of([])
    # In words that the interval goes by.
    for tunables, said in (("glibc.malloc.mmap_threshold=1", memory.KEEPS), ("", "not applied: ")):
        monkeypatch.setenv(name, tunables)
        assert prepared(["eager-best"]).techniques["allocator"].startswith(said)
    monkeypatch.delenv(name)
    monkeypatch.setattr(variants.hardware, "device_type", lambda: "cuda")
    assert name not in variants.variables_of(["fabric-best"])


def test_what_is_for_bfloat16_alone_takes_no_turns_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants.hardware, "device_type", lambda: "cpu")
    for name in (variants.SMALL_CONVOLUTIONS, variants.MIXED_PRODUCTS, variants.LARGE_BATCH_NORMS):
        assert variants.reason_not_applied(name, "O0") == "the run is in fp32"


def test_a_technique_comes_without_the_others() -> None:
    layout, fused = prepared(["layout"], "SGD"), prepared([variants.FUSED], "SGD")
    assert layout.loader.memory_format is torch.channels_last
    assert first_weight(layout).is_contiguous() and first_weight(fused).is_contiguous()
    assert optim.kind(layout.optimizer) == "torch's own" and optim.kind(fused.optimizer) == "fused"
    assert layout.techniques == {"layout": "channels_last"}
    assert fused.techniques == {"optimizer": "fused"}
