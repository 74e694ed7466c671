"""The layout of convolutions shows only in speed; a user sees what plain PyTorch shows."""

import copy

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.system import hardware

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """Convolutions whose code needs contiguous images, and that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, padding=1, groups=4),
        )
        self.shortcut = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16 * 16, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return [samples, 5] and images [samples, 16, 4, 4] of [samples, 3, 8, 8]."""
        self.calls += 1
        x = self.features(x)
        x = self.shortcut(x) + x
        rows = x.as_strided((len(x), 4), (16 * 16, 1)).sum(1)  # the first four values in memory
        return self.head(x.view(len(x), -1)) + rows[:, None], x


@pytest.fixture(autouse=True)
def convolutions_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "prefers_channels_last", lambda device_type: True)


@pytest.fixture(scope="module")
def plain() -> Net:
    torch.manual_seed(0)
    return Net()


def images() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def what_a_user_sees(model: Net) -> dict[str, Tensor]:
    """Infer, train, and return all that is to be as in plain PyTorch, strides included."""
    seen: dict[str, Tensor] = {}
    model.features[0].weight.register_hook(lambda grad: seen.update(hook=grad.view(-1)))
    with torch.inference_mode():
        model(images())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        scores, features = model(images())
        (scores.square().mean() + features.mean()).backward()
        optimizer.step()
    x = (noise := torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(2))) + 0
    x.requires_grad_()
    scores, seen["images"] = model(x * 1)
    loss = scores.square().mean() + seen["images"].view(-1).square().mean()
    seen["autograd.grad"], seen["of weights"] = torch.autograd.grad(
        loss, [x, model.features[4].weight], retain_graph=True
    )
    loss.backward()
    seen["x.grad"] = x.grad.view(len(noise), -1)
    seen["vector"] = parameters_to_vector(model.parameters())
    seen["features"] = model.features(images()).view(4, -1)
    seen["norm"] = torch.stack([p.grad.view(-1).norm() for p in model.parameters()])
    seen |= {f"grad {name}": p.grad for name, p in model.named_parameters()}
    seen |= {f"copy {name}": v for name, v in copy.deepcopy(model).state_dict().items()}
    assert save(model.state_dict())
    return {name: value.detach() for name, value in seen.items()}


def _strides(tensor: Tensor) -> list[int]:
    """Return the strides of dimensions with more than one element: others mean nothing."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_values_and_strides_are_those_of_plain_pytorch(plain, compiled):
    expected = what_a_user_sees(copy.deepcopy(plain))
    config = Config()
    config.compiler.enabled = compiled
    model = accelerate(copy.deepcopy(plain), config)
    found = what_a_user_sees(model)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert _strides(found[name]) == _strides(value), name
        torch.testing.assert_close(found[name], value, rtol=2e-3, atol=1e-5, msg=name)


class Views(nn.Module):
    """Convolutions whose results are returned as views of many kinds, or read by their strides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.squeeze = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return tensors of [samples, 3, height, width]."""
        y = self.conv(x).relu()
        laid_out = torch.empty_strided(y.shape, y.stride())
        laid_out.copy_(y)
        pixels = self.squeeze(y.mean((2, 3), keepdim=True))
        windows, half, rows = y.unfold(2, 2, 1), (y * 2).split(4, 1)[1], (y * 3).permute(0, 2, 3, 1)
        return [windows, half, rows, pixels, laid_out * 1]


def test_views_have_the_strides_of_plain_pytorch_for_sizes_that_vary():
    torch.manual_seed(0)
    plain = Views()
    ours = accelerate(copy.deepcopy(plain))
    for samples, height in ((2, 8), (3, 10), (4, 12)):
        x = torch.randn(samples, 3, height, height)
        expected, found = plain(x), ours(x)
        for mine, theirs in zip(found, expected, strict=True):
            assert _strides(mine) == _strides(theirs)
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        for results in (expected, found):
            sum(one.square().mean() for one in results).backward()
        torch.testing.assert_close(ours.conv.weight.grad, plain.conv.weight.grad)


def test_an_uncompiled_model_computes_in_channels_last_by_name_unless_it_has_code_of_its_own(
    plain, capsys
):
    seen: list[Tensor] = []
    config = Config()
    config.compiler.enabled, config.memory.layout = False, "channels_last"
    model = accelerate(nn.Sequential(nn.Conv2d(3, 4, 3)), config)
    model[0].register_forward_hook(lambda module, args, result: seen.append(result))
    assert model(images()).is_contiguous() and model[0].weight.is_contiguous()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    own = accelerate(copy.deepcopy(plain), config)
    assert techniques(own)["layout"].startswith("contiguous")
    assert "Net stays contiguous" in capsys.readouterr().err
    torch.testing.assert_close(own(images())[0], copy.deepcopy(plain)(images())[0])
