"""What every operator promises, whatever it computes.

Its schema, fake results and gradients are as the compiler needs them; no bit depends on the order
of threads; plain torch stands in where no C++ can be built; and graphs can be captured of it.
"""

from __future__ import annotations

import pytest
import torch
from kernels import calls
from kernels.ways import IN_CPP, ON_HOST, moved, tensors_in

from gallery_lib.kernels import mixed_product
from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.usage import KernelsNotUsed


def each_of(families):
    return pytest.mark.parametrize("family", families, ids=lambda family: family.__name__)


def opcheck(family, device="cpu"):
    torch.manual_seed(0)
    for name, arguments in family():
        torch.library.opcheck(getattr(calls.OPERATORS, name).default, moved(arguments, device))


@pytest.mark.slow
@each_of(calls.EVERY)
def test_opcheck(family):
    opcheck(family)


@pytest.mark.gpu
@each_of(calls.IN_CUDA)
def test_opcheck_on_a_device(family, cuda_kernels):
    opcheck(family, cuda_kernels)


@pytest.mark.gpu
@each_of(calls.IN_CUDA)
def test_a_call_in_a_captured_graph_is_replayed_on_other_values(family, cuda_kernels):
    torch.manual_seed(0)
    for name, arguments in family():
        operator = getattr(calls.OPERATORS, name)
        ours, expected = (moved(arguments, cuda_kernels, leaves=False) for _ in range(2))
        before = [tensor.clone() for tensor in tensors_in(ours)]
        of_eager = operator(*expected)  # which compiles and loads the kernels
        for tensor in tensors_in(ours):
            tensor.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            of_graph = operator(*ours)
        for tensor, value in zip(tensors_in(ours), before, strict=True):
            tensor.copy_(value)
        graph.replay()
        found, wanted = tensors_in((of_graph, ours)), tensors_in((of_eager, expected))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("way", "family"),
    [
        pytest.param(*way.values, family, id=f"{way.id}-{family.__name__}")
        for way, families in (
            (ON_HOST, calls.IN_CUDA),
            (IN_CPP, (*calls.IN_CPP, calls.products)),
        )
        for family in families
    ],
)
def test_no_bit_depends_on_the_order_of_threads(way, family):
    if family is calls.products and (reason := mixed_product.reason_not_available()):
        pytest.skip(reason)
    first, *others = (calls.results(family, way(schedule, 0).call) for schedule in range(3))
    for other in others:
        for (name, ours), (_, theirs) in zip(first, other, strict=True):
            assert all(map(torch.equal, ours, theirs)), name


@pytest.mark.parametrize("compiler", [None, "false", "/nowhere/g++"])
def test_without_cpp_plain_torch_does_the_same_and_says_so_once(compiler, monkeypatch, tmp_path):
    expected = [result for family in calls.IN_CPP for result in calls.results(family)]
    monkeypatch.setattr(cpp.hardware, "cpp_compiler", lambda: compiler)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    cpp.library.cache_clear()
    try:
        with pytest.warns(KernelsNotUsed) as said:
            found = [result for family in calls.IN_CPP for result in calls.results(family)]
    finally:
        cpp.library.cache_clear()
    texts = [str(each.message) for each in said]
    assert len(texts) == len(set(texts)) == len(calls.IN_CPP)
    assert all("is not used, plain torch does its work more slowly" in text for text in texts)
    assert not list(tmp_path.rglob("*.so"))
    for (name, ours), (_, theirs) in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            exact = not one.is_floating_point() or name == "max_pool"  # whose values are copies
            off = {"rtol": 0, "atol": 0} if exact else {"rtol": 2**-7, "atol": 1e-3}
            torch.testing.assert_close(one, other, **off, msg=name)
