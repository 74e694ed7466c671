"""accelerate(): placement, state-dict keys, sharding of nothing, refusal of a second call."""

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
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


def test_convolutions_get_channels_last_and_keep_their_values() -> None:
    original = model()
    config = Config()
    config.compiler.enabled = False
    changed, _ = accelerate(copy.deepcopy(original), None, config)
    assert changed[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(changed[0].weight, original[0].weight)


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
