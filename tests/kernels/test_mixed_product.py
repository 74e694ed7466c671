"""`gallery::mixed_product` against float64 and torch: values, layouts, infinities, errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gallery_lib.kernels import mixed_product
from gallery_lib.kernels.runtime import operators
from gallery_lib.system import hardware

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


def exact_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of what autocast multiplies, in float64."""
    left, right = left.to(torch.bfloat16).double(), right.to(torch.bfloat16).double()
    return left @ right + (0 if bias is None else bias.to(torch.bfloat16).double())


def assert_rounded_once(found: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> None:
    """Assert that each number is the exact one, rounded to bfloat16, but for sums in fp32."""
    exact = exact_product(left, right, bias)
    sums = left.to(torch.bfloat16).double().abs() @ right.to(torch.bfloat16).double().abs()
    allowed = exact.abs() * 2.0**-8 + (sums + exact.abs()) * 2.0**-20
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
def test_results_are_the_exact_ones_rounded_once(
    m: int,
    k: int,
    n: int,
    left: str,
    right: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    bias: torch.dtype | None,
    wide: bool,
    seed: int,
) -> None:
    a, b = matrix(m, k, dtypes[0], left, seed), matrix(k, n, dtypes[1], right, seed + 1)
    c = None if bias is None else matrix(1, n, bias, "rows", seed + 2)[0]
    found = PRODUCT(a, b, c, wide)
    assert found.dtype is (torch.float32 if wide else torch.bfloat16)
    assert found.shape == (m, n) and found.is_contiguous()
    assert torch.equal(found, found.to(torch.bfloat16).to(found.dtype))  # as autocast rounds
    assert_rounded_once(found, a, b, c)


@IN_CPP
def test_the_number_of_threads_changes_no_bit() -> None:
    left = matrix(37, 2051, torch.bfloat16, "rows", 0)
    right = matrix(2051, 333, torch.float32, "columns", 1)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        results.append(PRODUCT(left, right, None, True))
    torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results[1:])


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
def test_batches_are_not_rounded(
    batch: int,
    m: int,
    k: int,
    n: int,
    layouts: tuple[str, str],
    dtype: torch.dtype,
    seed: int,
) -> None:
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
