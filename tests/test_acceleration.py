"""accelerate(): placement, state-dict keys, sharding of nothing, refusal of a second call."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate, hardware
from gallery_lib.acceleration import techniques
from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def loader() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(20, 3, 8, 8), torch.arange(20)), batch_size=4, shuffle=True)


def test_the_package_is_the_interface() -> None:
    import gallery_lib as torchacc
    import gallery_lib.acceleration

    assert torchacc.accelerate is gallery_lib.acceleration.accelerate
    assert torchacc.Config().compute.fp16 is False


def test_the_model_has_a_device_and_plain_keys_and_the_loader_yields_batches_there() -> None:
    plain = model()
    keys = list(plain.state_dict())
    accelerated, batches = accelerate(plain, loader())
    assert accelerated.device == torch.device("cpu")
    assert list(accelerated.state_dict()) == keys
    assert len(batches) == 5
    assert sorted(i for _, labels in batches for i in labels.tolist()) == list(range(20))


def test_the_baseline_has_none_of_the_backend() -> None:
    plain, _ = accelerate(model(), None, Config.plain())
    assert techniques(plain) == {}
    assert plain[0].weight.is_contiguous()
    assert not plain[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("gains", "layout", "changes"), [(True, "auto", True), (False, "auto", False), (False, "channels_last", True)])
def test_convolutions_get_channels_last_where_they_gain_from_it_and_keep_their_values(
    monkeypatch: pytest.MonkeyPatch, gains: bool, layout: Any, changes: bool
) -> None:
    monkeypatch.setattr(hardware, "prefers_channels_last", lambda device_type: gains)
    original = model()
    config = Config()
    config.compiler.enabled = False
    config.memory.layout = layout
    changed, _ = accelerate(copy.deepcopy(original), None, config)
    assert changed[0].weight.is_contiguous(memory_format=torch.channels_last) == changes
    assert torch.equal(changed[0].weight, original[0].weight)
    assert ("layout" in techniques(changed)) == changes


@pytest.mark.parametrize(
    ("device_type", "flags", "gains"),
    [("cpu", {"avx2"}, False), ("cpu", {"avx2", "avx512f"}, True), ("cpu", {"asimd"}, True), ("cuda", {"avx2"}, True)],
)
def test_convolutions_gain_from_channels_last_but_on_cpus_without_avx512(
    monkeypatch: pytest.MonkeyPatch, device_type: str, flags: set[str], gains: bool
) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: flags)
    assert hardware.prefers_channels_last(device_type) == gains


def test_a_second_call_on_the_same_model_is_refused() -> None:
    config = Config()
    config.compiler.enabled = False
    once, _ = accelerate(model(), None, config)
    with pytest.raises(InputError, match="twice"):
        accelerate(once, None, config)


def test_a_second_call_is_refused_for_the_baseline_too() -> None:
    once, _ = accelerate(model(), None, Config.plain())
    with pytest.raises(InputError, match="twice"):
        accelerate(once, None, Config.plain())


def test_a_misspelt_option_or_an_impossible_value_is_refused_when_it_is_set() -> None:
    config = Config()
    with pytest.raises(InputError, match=r"Compute has no option `fp61`\. Did you mean `fp16`"):
        config.compute.fp61 = True
    with pytest.raises(InputError, match="prefetch=-1 must be at least 0"):
        config.loader.prefetch = -1
    with pytest.raises(InputError, match=r"Config\.loader=3 must be a Loader"):
        config.loader = 3
    with pytest.raises(InputError, match="layout='nhwc' must be auto or contiguous or channels_last"):
        Config().memory.layout = "nhwc"


def test_no_process_group_is_made_for_a_process_that_is_alone() -> None:
    accelerate(model(), None, Config.plain())
    assert not torch.distributed.is_initialized()


def test_float16_on_a_cpu_is_said_to_be_fp32() -> None:
    config = Config.plain()
    config.compute.fp16 = True
    with pytest.warns(UserWarning, match="float16 was asked for, and this run is on the CPU"):
        changed, _ = accelerate(model(), None, config)
    assert techniques(changed)["precision"].startswith("fp32")


def test_a_model_without_values_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"parameter weight has no values \(it is on the meta device\)"):
        accelerate(nn.Linear(2, 2, device="meta"), None, Config.plain())


def test_an_optimizer_made_before_goes_on_working() -> None:
    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    changed, _ = accelerate(plain, None, Config.plain())
    before = changed[0].weight.detach().clone()
    changed(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert not torch.equal(changed[0].weight, before)


def test_a_model_of_buffers_only_and_one_with_frozen_parameters_pass_through() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    scale, _ = accelerate(Scale(), None, Config.plain())
    assert scale(torch.ones(2)).tolist() == [2.0, 2.0]
    frozen = model()
    frozen[0].requires_grad_(False)
    changed, _ = accelerate(frozen, None, Config.plain())
    changed(torch.randn(2, 3, 8, 8)).sum().backward()
    assert changed[0].weight.grad is None and changed[4].weight.grad is not None


def test_no_sync_is_there_also_on_one_process() -> None:
    changed, _ = accelerate(model(), None, Config.plain())
    with changed.no_sync():
        changed(torch.randn(2, 3, 8, 8)).sum().backward()
    assert changed[0].weight.grad is not None


def test_the_state_dict_is_read_back_with_weights_only(tmp_path: Path) -> None:
    changed, _ = accelerate(model(), None, Config.plain())
    torch.save(changed.state_dict(), tmp_path / "weights.pt")
    fresh = model()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))


def test_an_unknown_compiler_backend_is_named() -> None:
    with pytest.raises(InputError, match=r"`inducter`\. Did you mean `inductor`"):
        compile_model(model(), Compiler(backend="inducter"), torch.device("cpu"))


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, gallery_lib, gallery_lib.config, gallery_lib.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.slow
def test_a_compiled_model_trains_like_the_plain_one() -> None:
    plain = model()
    compiled, _ = accelerate(copy.deepcopy(plain), None, Config())
    inputs, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    for network in (plain, compiled):
        nn.functional.cross_entropy(network(inputs), labels).backward()
    for (name, ours), theirs in zip(compiled.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert list(compiled.state_dict()) == list(plain.state_dict())
