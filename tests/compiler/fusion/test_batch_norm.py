"""`fuse_batchnorm`: which patterns it finds, and that the fused model trains as before.

Evaluation stays the same, too. Whole models are compared in fp64, where their gradients are known
to many digits; layers also in fp32 and bf16.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from own_batch_norms import every_kind_of_layer
from torch import nn

from gallery_lib.compiler.fusion.batch_norm import BatchNormReLU2d, Fusion, fuse_batchnorm
from gallery_lib.models.unet import UNet


def resnet(name: str) -> nn.Module:
    from torchvision import models

    return getattr(models, name)(num_classes=10)


def vgg_with_batch_norm() -> nn.Module:
    from torchvision.models import vgg

    return vgg.make_layers([8, "M", 16, 16], batch_norm=True)


def of_timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=10)


MODELS = {
    "vgg_bn": (vgg_with_batch_norm, Fusion(relu=3, add_relu=0, left=0)),
    "unet": (UNet, Fusion(relu=18, add_relu=0, left=0)),
    "resnet18": (lambda: resnet("resnet18"), Fusion(relu=9, add_relu=8, left=3)),
    "resnet50": (lambda: resnet("resnet50"), Fusion(relu=33, add_relu=16, left=4)),
    "vovnet39a": (lambda: of_timm("vovnet39a"), Fusion(relu=39, add_relu=0, left=0)),
    "timm-resnet18": (lambda: of_timm("resnet18"), Fusion(relu=9, add_relu=8, left=3)),
    "timm-resnet50d": (lambda: of_timm("resnet50d"), Fusion(relu=35, add_relu=16, left=4)),
}
"""Models, and how many batch norms of each are fused with what.

`left` counts those of the shortcuts, after which there is no ReLU.
"""
FAST = {"vgg_bn"}


def named(names) -> list:
    return [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in names]


def a_layer(**arguments) -> nn.Module:
    layers = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6, **arguments),
        nn.ReLU(),
        nn.Conv2d(6, 4, 1),
        nn.BatchNorm2d(4),
    )
    for parameter in layers.parameters():
        nn.init.normal_(parameter)
    return layers


def trained(model: nn.Module, x: torch.Tensor, steps: int = 2) -> list[torch.Tensor]:
    """Train, and return outputs of all steps, an evaluation, the last gradients and all buffers."""
    model.train()
    seen = []
    for step in range(steps):
        model.zero_grad()
        result = model(x + step)
        seen.append(result.detach().clone())
        (
            result * torch.linspace(-1, 1, result.numel(), dtype=x.dtype).view_as(result)
        ).sum().backward()
        with torch.no_grad():
            norm = torch.nn.utils.get_total_norm(
                [parameter.grad for parameter in model.parameters()]
            )
            for parameter in model.parameters():
                parameter -= 1e-2 * parameter.grad / norm
    with torch.no_grad():
        seen.append(model.eval()(x))
    return [
        *seen,
        *(parameter.grad for parameter in model.parameters()),
        *(buffer.clone() for buffer in model.buffers()),
    ]


def pair(model: nn.Module, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    """Return the model and a fused copy, in channels_last."""
    model.to(dtype=dtype, memory_format=torch.channels_last)
    fused = copy.deepcopy(model)
    fuse_batchnorm(fused)
    return model, fused


def images(size: int = 64, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return images that leave the last layers 2 × 2 positions at 64 pixels.

    With 1 × 1, they would be channels_last whatever the layout, and a batch norm would normalise 4
    values.
    """
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1)).to(
        dtype=dtype, memory_format=torch.channels_last
    )


@pytest.mark.parametrize("name", named(MODELS))
def test_every_pattern_of_a_model_is_found_and_its_training_stays_the_same(name):
    torch.manual_seed(0)
    build, expected = MODELS[name]
    model = build()
    if name.startswith("timm-resnet"):
        # timm starts the last batch norm of a block at 0, which hides what is behind it.
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.0)
    original, fused = pair(model)
    assert fuse_batchnorm(copy.deepcopy(original)) == expected
    assert list(fused.state_dict()) == list(original.state_dict())
    size = 32 if name in ("vgg_bn", "unet") else 64
    for got, exact in zip(
        trained(fused, images(size), 1), trained(original, images(size), 1), strict=True
    ):
        torch.testing.assert_close(
            got, exact, rtol=0, atol=1e-6 * max(exact.abs().max().item(), 1e-2)
        )
    assert any(
        isinstance(module, nn.BatchNorm2d) and module.num_batches_tracked == 1
        for module in fused.modules()
    )


@pytest.mark.parametrize("name", named(MODELS))
def test_evaluation_and_other_layouts_are_the_same_bits(name):
    torch.manual_seed(0)
    model = MODELS[name][0]()
    fused = copy.deepcopy(model)
    fuse_batchnorm(fused)
    x = images(dtype=torch.float32).contiguous()
    for mode in (True, False):
        with torch.no_grad():
            assert torch.equal(fused.train(mode)(x), model.train(mode)(x))
    for ours, theirs in zip(fused.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


@every_kind_of_layer
def test_every_kind_of_batch_norm_trains_and_evaluates_as_before(arguments):
    original, fused = pair(a_layer(**arguments))
    assert isinstance(fused[1], BatchNormReLU2d)
    torch.testing.assert_close(
        trained(fused, images(12)), trained(original, images(12)), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 5e-5), (torch.bfloat16, 3e-2)])
def test_in_fp32_and_under_autocast_it_differs_by_rounding_only(dtype, tolerance):
    """The tolerance of vectors is of the largest value of all.

    A bias before a batch norm has the gradient zero, as a sum of large terms.
    """
    torch.manual_seed(0)
    original, fused = pair(a_layer(), torch.float32)
    with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
        ours, theirs = (
            trained(model, images(12, torch.float32), steps=1) for model in (fused, original)
        )
    largest = max(expected.abs().max().item() for expected in theirs)
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            got,
            expected,
            rtol=0,
            atol=tolerance * (largest if expected.ndim == 1 else expected.abs().max().item()),
        )


def test_parameters_of_16_bits_train_by_torchs_own_calls():
    original, fused = pair(a_layer(), torch.bfloat16)
    x = images(12, torch.bfloat16)
    assert torch.equal(fused.train()(x), original.train()(x))


def test_a_batch_of_one_value_is_refused_in_torchs_words():
    fused = pair(a_layer())[1]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        fused.train()(images(3)[:1])


def test_what_someone_looks_at_or_uses_twice_is_left_alone():
    shared = nn.BatchNorm2d(3)
    watched, watched_relu = a_layer(), a_layer()
    watched[1].register_forward_hook(lambda *_: None)
    watched_relu[2].register_forward_pre_hook(lambda *_: None)
    twice = nn.Sequential(shared, nn.ReLU(), shared)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(a_layer())
    others = nn.Sequential(
        nn.BatchNorm2d(3), nn.GELU(), nn.BatchNorm2d(3), nn.Identity(), nn.ReLU()
    )
    for model in (watched, watched_relu, twice, synchronised, others):
        kinds = [type(module) for module in model.modules()]
        fusion = fuse_batchnorm(model)
        assert (fusion.relu, fusion.add_relu, kinds) == (
            0,
            0,
            [type(module) for module in model.modules()],
        )


def test_it_says_how_many_and_finds_nothing_the_second_time():
    model = a_layer()
    assert (
        str(fuse_batchnorm(model))
        == "1 BatchNorm + ReLU and 0 BatchNorm + add + ReLU fused, 1 batch norms left as they are"
    )
    assert fuse_batchnorm(model) == Fusion(relu=0, add_relu=0, left=2)


@pytest.mark.parametrize("name", named(["vgg_bn", "resnet18", "timm-resnet18"]))
def test_synchronised_layers_put_in_place_of_fused_ones_keep_the_model_as_it_was_written(name):
    torch.manual_seed(0)
    original, fused = pair(MODELS[name][0]())
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(fused).eval()  # which trains on CUDA only
    assert torch.equal(converted(images()), original.eval()(images()))


def test_a_fused_model_can_be_copied_and_kept():
    fused = pair(a_layer())[1]
    again = pickle.loads(pickle.dumps(copy.deepcopy(fused)))
    torch.testing.assert_close(
        trained(again, images(12)), trained(fused, images(12)), rtol=0, atol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_in_one_graph(backend):
    torch.compiler.reset()  # what other tests have compiled of the same code counts
    torch.manual_seed(0)
    fused = pair(a_layer(), torch.float32)[1]
    compiled = copy.deepcopy(fused)
    compiled.compile(backend=backend, fullgraph=True)
    x = images(12, torch.float32)
    # Over seeds, torch's own layers in fp32 are up to 3e-4 from float64 here.
    torch.testing.assert_close(trained(compiled, x), trained(fused, x), rtol=5e-4, atol=5e-4)


@pytest.mark.slow
def test_it_trains_in_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        original, fused = pair(a_layer())
        wrapped = nn.parallel.DistributedDataParallel(fused)
        torch.testing.assert_close(
            trained(wrapped, images(12)), trained(original, images(12)), rtol=1e-11, atol=1e-11
        )
    finally:
        torch.distributed.destroy_process_group()
