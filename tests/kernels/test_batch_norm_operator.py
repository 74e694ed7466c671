"""The operator `gallery::batch_norm_relu`: training as torch's, processes, refusals, the device."""

from __future__ import annotations

import pytest
import torch
from cuda_on_host import draw
from kernels.batch_norm_memory import EPS
from refusal import refused
from torch.nn import functional

from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.batch_norm_reference import Channels, Running
from gallery_lib.kernels.runtime.launch import ELEMENTS


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("momentum", [None, 0.1])
def test_training_is_that_of_torch(with_residual, affine, momentum):
    torch.manual_seed(0)

    def fresh(shape):
        return torch.randn(shape, dtype=torch.float64)

    x, residual, weight, bias, seed = (
        fresh((3, 5, 4, 2)),
        fresh((3, 5, 4, 2)),
        fresh(5),
        fresh(5),
        fresh((3, 5, 4, 2)),
    )
    outcomes = []
    for ours in (True, False):
        leaves = [each.clone().requires_grad_() for each in (x, residual, weight, bias)]
        x_, residual_, weight_, bias_ = (
            leaves[0],
            *(leaves[1:2] if with_residual else [None]),
            *(leaves[2:] if affine else [None, None]),
        )
        mean, variance, batches = torch.zeros(5).double(), torch.ones(5).double(), torch.tensor(2)
        if ours:
            result = batch_norm_relu(
                x_,
                mean,
                variance,
                weight_,
                bias_,
                residual=residual_,
                batches=batches,
                momentum=momentum,
                eps=EPS,
            )
        else:
            batches += 1
            share = 1 / batches.item() if momentum is None else momentum
            result = functional.batch_norm(x_, mean, variance, weight_, bias_, True, share, EPS)
            result = (result if residual_ is None else result + residual_).relu()
        gradients = torch.autograd.grad(
            (result * seed).sum(),
            [each for each in (x_, residual_, weight_, bias_) if each is not None],
        )
        outcomes.append((result, mean, variance, batches, *gradients))
    torch.testing.assert_close(*outcomes, rtol=1e-11, atol=1e-11)


def test_two_processes_together_are_one_large_batch():
    """SyncBatchNorm's work, with this library's operators.

    Only (count, mean, squares) and two sums are exchanged.
    """
    torch.manual_seed(0)
    operators = torch.ops.gallery
    x, gradient, weight, bias = (
        torch.randn(6, 3, 4, 4).double(),
        torch.randn(6, 3, 4, 4).double(),
        *torch.randn(2, 3).double(),
    )
    xs, gradients = x.split([2, 4]), gradient.split([2, 4])
    counts = torch.tensor([2 * 16, 4 * 16])
    means, squares = (
        torch.stack(column)
        for column in zip(*(operators.batch_norm_partial(part) for part in xs), strict=True)
    )
    channels = (
        *operators.batch_norm_combine_(counts, means, squares, None, None, None, 0.1, EPS),
        weight,
        bias,
    )
    sums = [
        operators.batch_norm_relu_sums(g, part, None, *channels)
        for g, part in zip(gradients, xs, strict=True)
    ]
    of_weight, of_bias = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    ours = [
        operators.batch_norm_relu_gradient(
            g, False, part, *channels, of_weight, of_bias, counts.sum()
        )
        for g, part in zip(gradients, xs, strict=True)
    ]
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    whole = functional.batch_norm(x, None, None, weight, bias, True, 0.1, EPS).relu()
    expected = torch.autograd.grad((whole * gradient).sum(), leaves)
    torch.testing.assert_close(
        (torch.cat(ours), of_weight, of_bias), expected, rtol=1e-11, atol=1e-11
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    operators, x = torch.ops.gallery, torch.randn(2, 4, 3, 3, dtype=dtype)
    channels = torch.rand(4, 4).unbind()
    counts, running = torch.tensor([10, 20]), (torch.zeros(4), torch.ones(4))
    torch.library.opcheck(operators.batch_norm_partial, (x,))
    torch.library.opcheck(
        operators.batch_norm_statistics_, (x, *running, torch.tensor(0), None, EPS)
    )
    torch.library.opcheck(
        operators.batch_norm_combine_,
        (counts, torch.rand(2, 4), torch.rand(2, 4), *running, None, 0.1, EPS),
    )
    for residual in (None, torch.randn_like(x).requires_grad_()):
        arguments = (
            x.clone().requires_grad_(),
            residual,
            *channels[:2],
            *(each.clone().requires_grad_() for each in channels[2:]),
        )
        torch.library.opcheck(operators.batch_norm_relu, arguments)
        result = None if residual is None else torch.randn_like(x)
        torch.library.opcheck(operators.batch_norm_relu_sums, (x, x.clone(), result, *channels))
    torch.library.opcheck(
        operators.batch_norm_relu_gradient,
        (x, False, x.clone(), *channels, *torch.rand(2, 4).unbind(), counts[:1]),
    )


def test_wrong_input_is_refused():
    x = torch.randn(2, 3, 4, 4)
    with refused("x", "[N, C, H, W]", "(3, 4, 4)"):
        batch_norm_relu(x[0], None, None)
    with refused("residual", "torch.bfloat16"):
        batch_norm_relu(x, None, None, residual=x.bfloat16())
    with refused("weight", "torch.float32 [3]", "(4,)"):
        batch_norm_relu(x, None, None, torch.ones(4))
    with refused("running_mean", "running_mean", "running_var"):
        batch_norm_relu(x, torch.zeros(3), None)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("shape", [(8, 64, 28, 28), (3, 20, 7, 5), (2, 2048, 7, 7)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_kernels_on_the_device(dtype, shape, with_residual, cuda_kernels):
    """Against float64 on the CPU, from the same inputs and ReLU mask."""
    torch.manual_seed(0)
    x, residual, of_result = (
        torch.randn(shape).to(dtype).to(memory_format=torch.channels_last) for _ in range(3)
    )
    weight, bias, running = (
        torch.rand(shape[1]) + 0.5,
        torch.randn(shape[1]),
        (torch.zeros(shape[1]), torch.ones(shape[1])),
    )
    leaves = [each.to(cuda_kernels).requires_grad_() for each in (x, weight, bias, residual)]
    on_device = [each.to(cuda_kernels) for each in running]
    result = batch_norm_relu(
        leaves[0], *on_device, *leaves[1:3], residual=leaves[3] if with_residual else None
    )
    result.backward(of_result.to(cuda_kernels))

    wide = [each.double() for each in running]
    mean, squares = rules.partial(x.double())
    statistics = rules.combine(
        torch.tensor([rules.rows(x)]), mean[None], squares[None], Running(*wide), EPS
    )
    c = Channels(*statistics, weight.double(), bias.double())
    of_weight, of_bias, masked = rules.sums(
        of_result.double(), x.double(), result.detach().cpu(), c
    )
    expected = [
        rules.normalise(x.double(), residual.double() if with_residual else None, c),
        *wide,
        of_weight,
        of_bias,
    ]
    expected += [
        rules.of_input(masked, x.double(), c, of_weight, of_bias, None),
        *([masked] if with_residual else []),
    ]
    gradients = [
        leaves[1].grad,
        leaves[2].grad,
        leaves[0].grad,
        *([leaves[3].grad] if with_residual else []),
    ]
    for got, exact in zip((result.detach(), *on_device, *gradients), expected, strict=True):
        roundoff = 4 * draw.UNIT_ROUNDOFF[dtype] if got.dtype is dtype else 0.0
        torch.testing.assert_close(
            got.cpu().double(),
            exact,
            rtol=1e-5 + roundoff,
            atol=1e-5 * exact.abs().max().item() + roundoff,
        )
