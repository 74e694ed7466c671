"""The CUDA path of an operator except for the launch itself: its kernels run in the CPU shim.

What is registered for CUDA is called with tensors of the CPU. So the fallback, the layouts, the
memory between launches and their order are those of a device.
"""

from __future__ import annotations

import pytest
import torch
from cuda_on_host import host
from kernels.dispatch import DEVICES, on
from kernels.optimizer_cases import CASES

import gallery_lib.kernels.batch_norm
import gallery_lib.kernels.compression
import gallery_lib.kernels.cross_entropy
import gallery_lib.kernels.optimizer_step  # noqa: F401  importing them registers their operators
from gallery_lib.kernels import cross_entropy_reference, gradient_statistics
from gallery_lib.kernels.compression_layout import WIRES, packed_bytes
from gallery_lib.kernels.compression_reference import reference_accumulate, reference_pack
from gallery_lib.kernels.optimizer_reference import COUNTS_STEPS
from gallery_lib.kernels.runtime import call_counts, fallback, launch

LABELS = torch.tensor([1, -100, 6, 0])


@pytest.fixture(params=["kernels", "fallback"])
def path(request, monkeypatch):
    launched: list[str] = []

    def run(each, device):
        launched.append(each.kernel)
        host.run(each, schedule=5)

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(fallback, "kernels_run", lambda device: request.param == "kernels")
    before = call_counts.counts()
    yield request.param
    assert bool(launched) == (request.param == "kernels")
    # An operator that a test calls for the right values may have C++ on the CPU.
    ways = {how for _, how in call_counts.counts() - before}
    assert (call_counts.KERNEL if launched else call_counts.PLAIN_TORCH) in ways


def test_gradient_statistics(path):
    gradients = [torch.randn(3, 4).t(), torch.randn(8, 8)[:, ::2], torch.randn(5).bfloat16()]
    norm, found_inf = on("CUDA", "gradient_statistics", gradients)
    expected = gradient_statistics.reference([g.clone() for g in gradients])
    torch.testing.assert_close((norm, found_inf), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_optimizer_step_with_weights_and_gradients_in_different_layouts(path, case):
    torch.manual_seed(0)
    weights = [
        torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(7),
        torch.randn(6, 2, 1, 1),
    ]
    gradients = [
        torch.randn(4, 3, 5, 5),
        torch.randn(7),
        torch.randn(6, 2, 1, 1).to(memory_format=torch.channels_last),
    ]
    present = [k for k, there in enumerate(case.present) if there]
    # No negative variance in centered RMSprop.
    states = [torch.rand_like(w) + (1 if k else 9) for k in present for w in weights]
    steps = [torch.ones(()) for _ in weights] if case.rule in COUNTS_STEPS else []
    numbers, switches = [1e-2, 1e-2, 0.9, 0.99, 1e-8, 0.9], [False, False, False, True]

    def arguments():
        copies = [[t.clone() for t in column] for column in (weights, gradients, states)]
        scalars = (
            torch.zeros((), dtype=torch.int64),
            torch.tensor(2.0),
            torch.tensor(0.0),
            None,
            None,
        )
        return (
            case.rule,
            *copies,
            present,
            [],
            [s.clone() for s in steps],
            *scalars,
            numbers,
            switches,
        )

    ours, expected = arguments(), arguments()
    on("CUDA", "optimizer_step_", *ours)
    on("CPU", "optimizer_step_", *expected)
    for got, reference in zip(ours[1:4], expected[1:4], strict=True):
        torch.testing.assert_close(got, reference, rtol=1e-5, atol=1e-6)
    assert not any(gradient.any() for gradient in ours[2])


@pytest.mark.parametrize("transposed", [False, True])
def test_cross_entropy(path, transposed):
    torch.manual_seed(0)
    logits = torch.randn(300, 4).t() if transposed else torch.randn(4, 300)
    loss, log_sum, above = on("CUDA", "cross_entropy_rows", logits, LABELS, 0.1, -100)
    expected = cross_entropy_reference.reference_rows(logits, LABELS, 0.1, -100)
    torch.testing.assert_close((loss, log_sum, above), expected, rtol=1e-5, atol=1e-6)
    of_loss = torch.ones(1).expand(4)
    gradient = on("CUDA", "cross_entropy_gradient", logits, LABELS, 0.1, -100, log_sum, of_loss)
    assert gradient.is_contiguous()
    torch.testing.assert_close(
        gradient,
        cross_entropy_reference.reference_gradient(logits, LABELS, 0.1, -100, log_sum, of_loss),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (2, 5, 1, 1)])
def test_batch_norm_relu_of_a_batch_in_another_layout(path, with_residual, shape):
    torch.manual_seed(0)
    x, residual, gradient = torch.randn(shape), torch.randn(shape), torch.randn(shape)
    channels = torch.rand(shape[1], 4).unbind(1)  # [C], with gaps
    beside = residual if with_residual else None
    outcomes = []
    for device in DEVICES:
        running = torch.zeros(shape[1]), torch.ones(shape[1]), torch.tensor(0)
        statistics = on(device, "batch_norm_statistics_", x, *running, None, 1e-5)
        result = on(device, "batch_norm_relu", x, beside, *channels)
        sums = on(
            device,
            "batch_norm_relu_sums",
            gradient,
            x,
            result if with_residual else None,
            *channels,
        )
        of_x = on(
            device, "batch_norm_relu_gradient", gradient, False, x, *channels, *sums[:2], None
        )
        outcomes.append((*statistics, *running, result, *sums, of_x))
    torch.testing.assert_close(*outcomes, rtol=1e-5, atol=1e-5)
    assert (
        result.is_contiguous(memory_format=torch.channels_last) and of_x.stride() == result.stride()
    )


def test_partial_statistics_of_batch_norm(path):
    x = torch.randn(4, 6, 5, 5)
    parts = [
        torch.stack(column)
        for column in zip(
            *(on("CUDA", "batch_norm_partial", part) for part in x.split(2)), strict=True
        )
    ]
    got = on(
        "CUDA", "batch_norm_combine_", torch.tensor([50, 50]), *parts, None, None, None, 0.1, 1e-5
    )
    torch.testing.assert_close(
        got,
        on("CPU", "batch_norm_statistics_", x, None, None, None, 0.1, 1e-5),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("wire", WIRES)
def test_compression_of_gradients(path, wire):
    gradient, errors, sums = (
        torch.randn(700).bfloat16(),
        [torch.ones(700), torch.ones(700)],
        [torch.ones(700), torch.ones(700)],
    )
    packed = torch.empty(packed_bytes(700, wire), dtype=torch.uint8)
    on("CUDA", "pack_gradient_", gradient, errors[0], wire, packed)
    on("CUDA", "accumulate_gradient_", sums[0], packed[None], wire, 0.5, True)
    reference_accumulate(sums[1], reference_pack(gradient, errors[1], wire)[None], wire, 0.5, True)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(errors[0], errors[1], rtol=0, atol=1e-6)
