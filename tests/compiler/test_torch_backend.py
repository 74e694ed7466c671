"""`torch.compile(model, backend="gallery")`: values, options, others' passes and the cache."""

import copy
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor.custom_graph_pass import CustomGraphPass

from gallery_lib.compiler import torch_backend
from gallery_lib.errors import InputError

pytestmark = pytest.mark.slow


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )


def _gradients(call: Any, model: nn.Module, images: Tensor, retain: bool) -> list[Tensor]:
    """Return the result and the gradients of one backward pass, or of two through one graph."""
    model.zero_grad()
    result = call(images)
    loss = result.square().mean()
    loss.backward(retain_graph=retain)
    if retain:
        loss.backward()
    return [result.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("options", "retained"),
    [({}, [False, True]), ({"without": ("max_pooling",), "max_autotune": False}, [True, False])],
)
def test_training_and_inference_are_eager_ones(
    options: dict[str, Any], retained: list[bool]
) -> None:
    assert "gallery" in torch.compiler.list_backends()
    torch._dynamo.reset()
    plain = _model()
    ours = copy.deepcopy(plain)
    compiled = torch.compile(ours, backend="gallery", options=options, fullgraph=True)
    images = torch.randn(4, 3, 16, 16)
    for retain in retained:
        mine = _gradients(compiled, ours, images, retain)
        wanted = _gradients(plain, plain, images, retain)
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(
            compiled.eval()(images), plain.eval()(images), rtol=1e-4, atol=1e-5
        )


def test_dynamic_shapes_take_one_graph() -> None:
    model = _model().eval()
    compiled = torch.compile(model, backend="gallery", dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    for size in (3, 4, 7):
        images = torch.randn(size, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
    assert graphs["unique_graphs"] == before + 1


class _Counter(CustomGraphPass):
    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: fx.Graph) -> None:
        self.graphs += 1

    def uuid(self) -> Any:
        return f"counter {time.time_ns()}"  # no cache has it


def test_a_pass_of_the_users_own_runs_before_ours() -> None:
    torch._dynamo.reset()
    counter = _Counter()
    options = {"post_grad_custom_post_pass": counter}
    model = torch.compile(_model(), backend="gallery", options=options)
    model(torch.randn(2, 3, 16, 16)).sum().backward()
    assert counter.graphs == 2  # forward and backward pass


def test_the_key_of_the_cache_has_both_passes_and_nothing_is_cached_without_a_key() -> None:
    ours = torch_backend.inductor_options("cpu")["post_grad_custom_post_pass"]
    theirs, own = torch_backend.after([_Counter()], ours).uuid()
    assert theirs[0].startswith("counter ") and own == ours.uuid()
    assert torch_backend.after([lambda graph: None], ours).uuid() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_autotun": True}, ["no option `max_autotun`", "`max_autotune`"]),
        ({"without": ("max_poolin",)}, ["max_poolin", "`max_pooling`"]),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, Any], words: list[str]) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=words[0]) as caught:  # Dynamo puts its own error around it
        torch.compile(_model(), backend="gallery", options=options)(torch.randn(2, 3, 16, 16))
    assert all(word in str(caught.value) for word in words)
    assert isinstance(caught.value.__cause__ or caught.value.inner_exception, InputError)


SCRIPT = """
import torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
layers = (torch.nn.Conv2d(3, 4, 1), torch.nn.UpsamplingBilinear2d(scale_factor=2))
plain, images = torch.nn.Sequential(*layers), torch.ones(2, 3, 5, 7)
result = torch.compile(plain, backend="gallery")(images)
torch.testing.assert_close(result, plain(images))
result.sum().backward()
print(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
"""


def test_a_second_process_takes_code_from_both_caches(tmp_path: Path) -> None:
    """The graph's and AOTAutograd's; the passes' keys are the same in every process.

    What comes from them has our operators, though no pass was done in that process.
    """
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert said == [[b"0", b"0"], [b"2", b"1"]]
