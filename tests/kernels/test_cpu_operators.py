"""Operators for the CPU alone: dropout's mask, max pooling, and products in bfloat16.

The mask has Philox's published values. Pooling is held against torch's: values, ties, NaN,
infinities, rounding. Products are held against float64 and torch.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kernels.ways import InCpp
from torch import Tensor
from torch.nn import functional

from gallery_lib.kernels import dropout_mask, max_pool, mixed_product  # noqa: F401  registers
from gallery_lib.kernels.runtime import operators
from gallery_lib.system import hardware

SCALE = torch.tensor(4.6566127342e-10)
FIRST_WORD_OF_ZEROS = 0x6627E8D5
"""Philox4x32-10's first word for counter 0 and key 0, from the known answers of Random123."""


def drawn(seed: int, size: list[int], threshold: float, schedule: int = 0) -> torch.Tensor:
    return InCpp(schedule).call("dropout_mask", torch.tensor([7, seed]), 1, size, threshold)


def test_the_first_number_is_the_published_one():
    number = float((torch.tensor(FIRST_WORD_OF_ZEROS) & 0x7FFFFFFF).float() * SCALE)
    below = float(torch.nextafter(torch.tensor(number), torch.tensor(0.0)))
    for function in (drawn, dropout_mask.reference):
        assert not function(0, [1], number).item()
        assert function(0, [1], below).item()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    size=st.lists(st.integers(0, 23), min_size=0, max_size=3),
    threshold=st.sampled_from([0.0, 0.1, 0.10009765625, 0.5, 0.999, 1.0, -1.0, 2.0]),
    schedule=st.integers(0, 2),
)
def test_cpp_draws_what_plain_torch_draws(seed, size, threshold, schedule):
    ours = drawn(seed, size, threshold, schedule)
    assert ours.dtype is torch.bool
    assert torch.equal(ours, dropout_mask.reference(seed, size, threshold))


@pytest.mark.parametrize("threshold", [0.1, 0.5])
def test_the_share_kept_and_its_neighbours_are_as_chance_has_them(threshold):
    kept = drawn(12345, [1000, 1000], threshold).float()
    deviation = (threshold * (1 - threshold) / kept.numel()) ** 0.5
    assert abs(float(kept.mean()) - (1 - threshold)) < 5 * deviation
    both = float((kept[:, 1:] * kept[:, :-1]).mean())
    assert abs(both - (1 - threshold) ** 2) < 10 * deviation


# --------------------------------------------------------------------------------------------------
# Max pooling.

BOTH_SIDES = st.tuples(st.integers(1, 4), st.integers(1, 4))


def images(shape: tuple[int, ...], dtype: torch.dtype, values: str, seed: int) -> torch.Tensor:
    """Return images in channels_last, with many equal values and some that are not finite."""
    generator = torch.Generator().manual_seed(seed)
    result = torch.randn(shape, generator=generator).mul(2).round()
    chosen = torch.rand(shape, generator=generator) < 0.3
    if values != "finite":
        result[chosen] = torch.nan if values == "nan" else -torch.inf
    return result.to(dtype).contiguous(memory_format=torch.channels_last)


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
        assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_contiguous_images_and_gradients_are_taken_too():
    image = torch.randn(2, 5, 8, 8)
    pooled, offsets = torch.ops.gallery.max_pool(image, [2, 2], [2, 2], [0, 0], False)
    assert torch.equal(pooled, functional.max_pool2d(image, 2))
    gradient = torch.randn(2, 5, 4, 4)
    ours = torch.ops.gallery.max_pool_gradient(gradient, offsets, [8, 8], [2, 2], [2, 2], [0, 0])
    leaf = image.clone().requires_grad_()
    functional.max_pool2d(leaf, 2).backward(gradient)
    assert torch.equal(ours, leaf.grad)


# --------------------------------------------------------------------------------------------------
# Products.

PRODUCT = torch.ops.gallery.mixed_product
IN_CPP = pytest.mark.skipif(
    mixed_product.reason_not_available() is not None,
    reason="needs a CPU with AVX512-BF16 and a C++ compiler, for which the C++ is written",
)
LAYOUTS = st.sampled_from(["rows", "columns", "gaps"])


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str, seed: int) -> Tensor:
    """Return a matrix whose rows or columns lie in one piece, or neither."""
    generator = torch.Generator().manual_seed(seed)
    if layout == "columns":
        return matrix(columns, rows, dtype, "rows", seed).t()
    values = torch.randn(rows, columns, generator=generator).to(dtype)
    if layout == "gaps":
        return torch.stack([values, values + 1], dim=2)[:, :, 0]
    return values


def assert_rounded_once(found: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
    """Assert that each number is the exact one, rounded to bfloat16, but for sums in fp32."""
    left, right = left.bfloat16().double(), right.bfloat16().double()
    exact = left @ right + (0 if bias is None else bias.bfloat16().double())
    allowed = exact.abs() * 2.0**-8 + (left.abs() @ right.abs() + exact.abs()) * 2.0**-20
    assert ((found.double() - exact).abs() <= allowed).all()


@settings(max_examples=80, deadline=None)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 140),
    n=st.integers(1, 120),
    left=LAYOUTS,
    right=LAYOUTS,
    dtypes=st.tuples(*[st.sampled_from([torch.bfloat16, torch.float32])] * 2),
    bias=st.sampled_from([None, torch.bfloat16, torch.float32]),
    wide=st.booleans(),
    seed=st.integers(0, 2**16),
)
@example(8, 1024, 48, "rows", "columns", (torch.bfloat16, torch.float32), torch.float32, False, 1)
@example(17, 1025, 50, "rows", "columns", (torch.bfloat16, torch.float32), None, True, 2)
@example(24, 1025, 50, "rows", "rows", (torch.bfloat16, torch.float32), None, False, 3)
@example(300, 2051, 70, "rows", "rows", (torch.bfloat16, torch.float32), None, False, 4)
@example(530, 8, 64, "columns", "rows", (torch.bfloat16, torch.bfloat16), None, True, 5)
@example(1, 1, 1, "gaps", "gaps", (torch.float32, torch.float32), torch.bfloat16, True, 6)
def test_results_are_the_exact_ones_rounded_once(m, k, n, left, right, dtypes, bias, wide, seed):
    a, b = matrix(m, k, dtypes[0], left, seed), matrix(k, n, dtypes[1], right, seed + 1)
    c = None if bias is None else matrix(1, n, bias, "rows", seed + 2)[0]
    found = PRODUCT(a, b, c, wide)
    assert found.dtype is (torch.float32 if wide else torch.bfloat16)
    assert found.shape == (m, n) and found.is_contiguous()
    assert torch.equal(found, found.to(torch.bfloat16).to(found.dtype))  # as autocast rounds
    assert_rounded_once(found, a, b, c)


@IN_CPP
@pytest.mark.parametrize("wide", [False, True])
def test_infinities_and_nan_are_where_torch_has_them(wide: bool) -> None:
    left, right = matrix(9, 64, torch.bfloat16, "rows", 0), matrix(64, 50, torch.float32, "rows", 1)
    left[2, 5], left[7, 3], right[11, 4], right[12, 40] = torch.inf, torch.nan, -torch.inf, 3e38
    right[:, 9] = 3.4e38  # rounds to infinity
    found, expected = (
        PRODUCT(left, right, None, wide),
        torch.mm(left, right.bfloat16()).to(torch.float32 if wide else torch.bfloat16),
    )
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=2**-7, atol=0.05)


@IN_CPP
def test_numbers_too_small_for_the_instruction_count_as_zero() -> None:
    tiny = torch.full((1, 2), 1e-39)
    assert PRODUCT(torch.ones(1, 1).bfloat16(), tiny, None, True).count_nonzero() == 0


@pytest.mark.parametrize("sizes", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_empty_matrices_have_torchs_result(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    found = PRODUCT(torch.ones(m, k).bfloat16(), torch.ones(k, n), None, False)
    assert torch.equal(found, torch.zeros(m, n).bfloat16())


def test_plain_torch_does_the_work_without_the_processors_instruction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "cpu_flags", lambda: {"avx512f"})
    assert "no bfloat16 units" in str(mixed_product.reason_not_available())
    name = ("mixed_product", operators.PLAIN_TORCH)
    before = operators.counts()[name]
    left, right = matrix(3, 4, torch.bfloat16, "rows", 0), matrix(4, 5, torch.float32, "rows", 1)
    assert_rounded_once(PRODUCT(left, right, None, False), left, right, None)
    assert operators.counts()[name] == before + 1


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 5),
    m=st.integers(1, 40),
    k=st.integers(1, 100),
    n=st.integers(1, 70),
    layouts=st.tuples(LAYOUTS, LAYOUTS),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    seed=st.integers(0, 2**16),
)
@example(3, 64, 64, 128, ("rows", "columns"), torch.bfloat16, 1)
def test_batches_are_not_rounded(batch, m, k, n, layouts, dtype, seed):
    def matrices(rows: int, columns: int, layout: str, number: int) -> Tensor:
        each = [matrix(rows, columns, dtype, layout, number + place) for place in range(batch)]
        if layout == "columns":
            return torch.stack([values.t() for values in each]).mT
        return torch.stack(each)[..., ::2] if layout == "gaps" else torch.stack(each)

    left = matrices(m, 2 * k if layouts[0] == "gaps" else k, layouts[0], seed)
    right = matrices(k, 2 * n if layouts[1] == "gaps" else n, layouts[1], seed + batch)
    found = torch.ops.gallery.exact_products(left, right)
    left, right = left.to(torch.bfloat16).double(), right.to(torch.bfloat16).double()
    assert found.dtype is torch.float32 and found.is_contiguous()
    allowed = (left.abs() @ right.abs()) * 2.0**-20 + 1e-30
    assert ((found.double() - left @ right).abs() <= allowed).all()
