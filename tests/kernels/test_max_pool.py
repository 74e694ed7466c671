"""`gallery::max_pool` and its gradient against torch's: values, ties, NaN, infinities, rounding."""

from __future__ import annotations

import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gallery_lib.kernels import max_pool

CHANNELS_LAST = torch.channels_last
BOTH_SIDES = st.tuples(st.integers(1, 4), st.integers(1, 4))


def images(shape: tuple[int, ...], dtype: torch.dtype, values: str, seed: int) -> torch.Tensor:
    """Return images in channels_last, with many equal values and some that are not finite."""
    generator = torch.Generator().manual_seed(seed)
    result = torch.randn(shape, generator=generator).mul(2).round()
    chosen = torch.rand(shape, generator=generator) < 0.3
    if values != "finite":
        result[chosen] = torch.nan if values == "nan" else -torch.inf
    return result.to(dtype).contiguous(memory_format=CHANNELS_LAST)


@settings(max_examples=80, deadline=None)
@given(
    shape=st.tuples(
        st.integers(1, 3),
        st.sampled_from([1, 3, 16, 17, 40]),
        st.integers(1, 11),
        st.integers(1, 9),
    ),
    kernel=BOTH_SIDES,
    stride=BOTH_SIDES,
    padded=st.tuples(st.booleans(), st.booleans()),
    ceil_mode=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    values=st.sampled_from(["finite", "nan", "infinite"]),
    seed=st.integers(0, 2**16),
)
@example((2, 64, 12, 12), (3, 3), (2, 2), (True, True), False, torch.bfloat16, "finite", 1)
@example((1, 17, 9, 9), (3, 3), (2, 2), (False, False), True, torch.bfloat16, "nan", 2)
def test_results_and_gradients_are_torchs(
    shape, kernel, stride, padded, ceil_mode, dtype, values, seed
):
    padding = [size // 2 if wanted else 0 for size, wanted in zip(kernel, padded, strict=True)]
    assume(all(s + 2 * p >= k for s, p, k in zip(shape[2:], padding, kernel, strict=True)))
    ours = images(shape, dtype, values, seed).requires_grad_()
    exact = ours.detach().double().requires_grad_()
    pooled, offsets = torch.ops.gallery.max_pool(ours, kernel, stride, padding, ceil_mode)
    expected = functional.max_pool2d(exact, kernel, stride, padding, ceil_mode=ceil_mode)
    assert torch.equal(pooled.double().nan_to_num(1e9), expected.nan_to_num(1e9))
    gradient = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    pooled.backward(gradient)
    expected.backward(gradient.double())
    assert ours.grad is not None and exact.grad is not None
    unit = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22, torch.float64: 2.0**-50}[dtype]
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=unit, atol=4 * 2.0**-22)
    for tensor in (pooled, offsets, ours.grad):
        assert tensor.is_contiguous(memory_format=CHANNELS_LAST)


def test_cpp_does_what_plain_torch_does_for_any_number_of_threads(monkeypatch):
    window = ([3, 2], [2, 1], [1, 1])
    image = images((2, 33, 10, 7), torch.bfloat16, "finite", 5)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3, None):
        if threads is None:
            monkeypatch.setattr(max_pool, "available", lambda: False)
        torch.set_num_threads(threads or before)
        pooled, offsets = torch.ops.gallery.max_pool(image, *window, False)
        gradient = torch.ones_like(pooled)
        of_image = torch.ops.gallery.max_pool_gradient(gradient, offsets, [10, 7], *window)
        results.append((pooled, offsets, of_image))
    for other in results[1:]:
        for one, another in zip(results[0], other, strict=True):
            assert torch.equal(one, another)


def test_contiguous_images_and_gradients_are_taken_too():
    image = torch.randn(2, 5, 8, 8)
    pooled, offsets = torch.ops.gallery.max_pool(image, [2, 2], [2, 2], [0, 0], False)
    assert torch.equal(pooled, functional.max_pool2d(image, 2))
    gradient = torch.randn(2, 5, 4, 4)
    ours = torch.ops.gallery.max_pool_gradient(gradient, offsets, [8, 8], [2, 2], [2, 2], [0, 0])
    leaf = image.clone().requires_grad_()
    functional.max_pool2d(leaf, 2).backward(gradient)
    assert torch.equal(ours, leaf.grad)
