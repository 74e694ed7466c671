"""A step's time in groups that add up; its bytes and FLOPs are those that one counts by hand."""

import functools
import re
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_task
import torch
import torch.nn.functional as F
from refusal import check_refused_command
from torch import Tensor, nn

from gallery_lib.cli.main import main
from gallery_lib.measure import operator_counts as counts
from gallery_lib.measure.operator_counts import Counts, Operation, Work, optimizer_bytes
from gallery_lib.measure.roofline import OWN, middle_of, operations, roofline_group, seconds_of_step
from gallery_lib.measure.roofline_result import (
    BETWEEN,
    COPIES,
    PRODUCTS,
    Limits,
    groups,
    read_roofline,
)
from gallery_lib.measure.step_profile import (
    FUSED,
    OPTIMIZER,
    OTHER,
    OUTSIDE,
    StepProfile,
    group_of,
    profile_steps,
)
from gallery_lib.system import hardware
from gallery_lib.tasks import memory_estimate

GROUPS = {
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "cudnn_infer_volta_scudnn_128x64_relu_interior_fprop": "convolutions",
    "aten::_convert_indices_from_coo_to_csr": OTHER,
    "aten::native_batch_norm_backward": "batch norms",
    "aten::native_layer_norm": "layer norms",
    "aten::addmm": "matrix products",
    "sm90_xmma_gemm_f32f32_tf32": "matrix products",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::mkldnn_rnn_layer": "recurrent layers",
    "aten::threshold_backward": "activations",
    "aten::_log_softmax": "loss",
    "aten::_softmax_backward_data": "softmax",
    "aten::max_pool2d_with_indices": "pooling",
    "aten::upsample_bilinear2d": "resampling",
    "aten::embedding_dense_backward": "embeddings",
    "aten::scatter_reduce_": "scatters",
    "aten::native_dropout": "dropout",
    "aten::copy_": "copies and conversions",
    "aten::fill_": "fills and new memory",
    "aten::sum": "sums and means",
    "aten::add_": "element-wise operators",
    "Torch-Compiled Region: 0/0": FUSED,
    "triton_poi_fused_add_relu_3": FUSED,
    "Optimizer.step#AdamW.step": OPTIMIZER,
}
GROUPS_OF_A_ROOFLINE = {
    "aten::convolution": "convolutions, forward",
    "aten::convolution_backward": "convolutions, backward",
    "aten::mm": "matrix products",
    "aten::native_layer_norm_backward": "normalisation",
    "aten::_to_copy": "data movement",
    "gallery::cross_entropy_gradient": OWN,
    "generated::cpp_fused_convolution_3 (graph 1)": FUSED,
    OPTIMIZER: OPTIMIZER,
    BETWEEN: BETWEEN,
}
TASK = f"{tiny_task.__file__}:TASK"


def test_an_operator_is_in_its_group() -> None:
    assert {name: group_of(name) for name in GROUPS} == GROUPS
    assert group_of("aten::add_", in_optimizer=True) == OPTIMIZER
    found = {name: roofline_group(name) for name in GROUPS_OF_A_ROOFLINE}
    assert found == GROUPS_OF_A_ROOFLINE


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def test_the_groups_add_up_to_the_step_and_name_what_the_step_does() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    run = functools.partial(steps_of, model, optimizer, torch.randn(8, 3, 64, 64))
    run()
    profile = profile_steps(run, 2)
    assert {"convolutions", "batch norms", "activations", OPTIMIZER, OUTSIDE} <= set(profile.groups)
    assert list(profile.groups.values()) == sorted(profile.groups.values(), reverse=True)
    assert sum(profile.share(group) for group in profile.groups) == pytest.approx(1.0)
    assert StepProfile({"convolutions": 0.3}).share("pooling") == 0.0


@pytest.mark.slow  # compiles
def test_a_compiled_step_has_the_compilers_kernels() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = functools.partial(steps_of, torch.compile(model), optimizer, torch.randn(4, 8))
    run()
    profile = profile_steps(run, 2)
    assert profile.groups.get(FUSED, 0.0) > 0.0


# --------------------------------------------------------------------------------------------------
# Bytes and FLOPs

FP32, BF16, INT64 = 4, 2, 8
ADD, MM = Operation("aten::add"), Operation("aten::mm")


def work_of(body: Callable[[], Any]) -> dict[str, Work]:
    """Return the work of what the body runs, by operator; an operator may have one shape here."""
    with Counts() as counter:
        body()
    names = [operation.name.removeprefix("aten::") for operation in counter.work]
    assert len(set(names)) == len(names), names
    return dict(zip(names, counter.work.values(), strict=True))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def both_passes(body: Callable[[], Tensor], *inputs: Tensor) -> tuple[Any, Any]:
    """Return the work of the forward pass, and of the gradients of these inputs, by operator."""
    out = body()
    gradient = torch.ones_like(out)
    return work_of(body), work_of(lambda: torch.autograd.grad(out, inputs, gradient))


A, B, HALF = torch.ones(10, 3), torch.ones(10, 3), torch.ones(2, 3, 3, dtype=torch.bfloat16)
TABLE, INDICES = torch.ones(1000, 4), torch.tensor([1, 5, 5])
OPERATORS: dict[str, tuple[Callable[[], Any], Work]] = {
    "mm": (lambda: A.T @ B, Work(1, FP32 * 69, 2 * 3 * 10 * 3, "float32")),
    "addmm": (
        lambda: torch.addmm(torch.ones(3), A.T, B),
        Work(1, FP32 * (3 + 69), 2 * 3 * 10 * 3, "float32"),
    ),
    "bmm": (lambda: HALF @ HALF, Work(1, BF16 * 3 * 18, 2 * 2 * 27, "bfloat16")),
    "mm into given memory": (
        lambda: torch.mm(A.T, B, out=torch.empty(3, 3)),
        Work(1, FP32 * 69, 2 * 3 * 10 * 3, "float32"),
    ),
    "convolution, transposed": (  # for each input: channels × kernel
        lambda: F.conv_transpose2d(torch.ones(2, 4, 5, 5), torch.ones(4, 3, 2, 2), stride=2),
        Work(1, FP32 * (200 + 48 + 600), 2 * (2 * 4 * 5 * 5) * (3 * 2 * 2), "float32"),
    ),
    "add": (lambda: A + B, Work(1, FP32 * 90)),
    "add_": (lambda: A.add_(B), Work(1, FP32 * 90)),  # two read, one written
    "copy_": (lambda: A.copy_(B), Work(1, FP32 * 60)),  # what is overwritten: not read
    "zero_": (A.zero_, Work(1, FP32 * 30)),
    "sum": (torch.ones(10, 1).expand(10, 1000).sum, Work(1, FP32 * 11)),  # in memory once
    "embedding": (lambda: F.embedding(INDICES, TABLE), Work(1, INT64 * 3 + 2 * FP32 * 12)),
    "index_put_": (  # values read, and as many elements of the table read and written
        lambda: TABLE.index_put_((INDICES,), torch.ones(3, 4), accumulate=True),
        Work(1, INT64 * 3 + 3 * FP32 * 12),
    ),
    "scatter_reduce_": (
        lambda: torch.zeros(1000).scatter_reduce_(0, INDICES, torch.ones(3), "sum"),
        Work(1, INT64 * 3 + 3 * FP32 * 3),
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_has_the_bytes_and_flops_that_one_counts_by_hand(name: str) -> None:
    body, expected = OPERATORS[name]
    assert vars(work_of(body)[re.split("[ ,]", name)[0]]) == vars(expected)


def test_a_view_moves_nothing() -> None:
    assert not work_of(lambda: A.T.reshape(3, 10)[1:].detach()).keys() - {"clone"}


def test_a_product_backward_is_two_products() -> None:
    with Counts() as counter:
        (leaf(3, 5) @ leaf(5, 7)).backward(torch.ones(3, 7))
    products = [work for operation, work in counter.work.items() if operation.name == "aten::mm"]
    assert sum(work.flops for work in products) == 3 * 2 * 3 * 5 * 7
    assert sum(work.bytes for work in products) == 3 * FP32 * (15 + 35 + 21)


@pytest.mark.parametrize(("groups", "first"), [(1, False), (2, False), (1, True)])
def test_a_convolution_forward_and_backward(groups: int, first: bool) -> None:
    image, weight = torch.randn(2, 4, 8, 8, requires_grad=not first), leaf(6, 4 // groups, 3, 3)

    forward, backward = both_passes(
        lambda: F.conv2d(image, weight, stride=2, padding=1, groups=groups),
        *([weight] if first else [image, weight]),
    )
    once = 2 * (2 * 6 * 4 * 4) * (4 // groups * 3 * 3)  # of each output: channels × kernel
    inputs, outputs = 2 * 4 * 8 * 8 + 6 * (4 // groups) * 9, 2 * 6 * 4 * 4
    work = forward["convolution"]
    assert (work.flops, work.bytes) == (once, FP32 * (inputs + outputs))
    work = backward["convolution_backward"]
    times = 1 if first else 2  # without a gradient of the image, the weight is not read
    assert (work.flops, work.bytes) == (times * once, FP32 * (outputs + times * inputs))


def test_batch_norm_forward_and_backward() -> None:
    image, weight, bias = leaf(4, 3, 5, 5), leaf(3), leaf(3)
    mean, variance = torch.zeros(3), torch.ones(3)

    forward, backward = both_passes(
        lambda: F.batch_norm(image, mean, variance, weight, bias, training=True),
        *(image, weight, bias),
    )
    # Parameters and running statistics are read, the batch's statistics written. The schema does
    # not say that the running ones are changed.
    moved = FP32 * (2 * image.numel() + 2 * 3 + 2 * 3 + 2 * 3)
    assert forward["native_batch_norm"].bytes == moved
    # The weight, running and saved statistics are read, the gradients of both parameters written.
    moved = FP32 * (3 * image.numel() + 3 + 4 * 3 + 2 * 3)
    assert backward["native_batch_norm_backward"].bytes == moved


def test_attention_forward_and_backward() -> None:
    n, heads, queries, keys, width = 2, 3, 8, 16, 4
    query = leaf(n, heads, queries, width)
    key, value = leaf(n, heads, keys, width), leaf(n, heads, keys, width)
    name, operands = "_scaled_dot_product_flash_attention_for_cpu", (query, key, value)
    forward, backward = both_passes(lambda: F.scaled_dot_product_attention(*operands), *operands)
    product = 2 * n * heads * queries * keys * width
    sums, sizes = n * heads * queries, query.numel() + key.numel()  # logsumexp
    work = forward[name]
    assert (work.flops, work.bytes) == (2 * product, FP32 * (2 * sizes + sums))
    work = backward[f"{name}_backward"]  # 5 products, with the scores computed anew
    assert (work.flops, work.bytes) == (5 * product, FP32 * (4 * sizes + sums))


@pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),
    reason="needs a torch with oneDNN, whose LSTM layer is one operator",
)
def test_an_lstm_layer() -> None:
    layer, frames = torch.nn.LSTM(5, 7), torch.randn(11, 2, 5)
    with Counts() as counter:
        layer(frames)[0].sum().backward()
    flops = {operation.name: work.flops for operation, work in counter.work.items()}
    once = 2 * 11 * 2 * (4 * 7) * (5 + 7)  # steps × samples × gates × inputs
    assert flops["aten::mkldnn_rnn_layer"] == once
    assert flops["aten::mkldnn_rnn_layer_backward"] == 2 * once


def test_what_has_no_floats_no_strides_or_no_schema_is_counted_or_let_through() -> None:
    embedding = torch.nn.Embedding(9, 4, sparse=True)
    with Counts() as counter:
        torch.ones(2, 2, dtype=torch.complex64) @ torch.ones(2, 2, dtype=torch.complex64)
        torch.ones(3, 3, dtype=torch.int64) @ torch.ones(3, 3, dtype=torch.int64)
        embedding(torch.arange(3)).sum().backward()
        (embedding.weight.grad * 2).coalesce()
        branch = torch.ops.higher_order.cond
        branch(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),))
    types = {work.dtype for work in counter.work.values() if work.flops}
    assert types == {"complex64", "int64"}


def test_an_optimizer_reads_gradients_and_reads_and_writes_the_rest() -> None:
    weight, unused = leaf(5, 3), leaf(100)
    weight.grad = torch.ones(5, 3)
    for optimizer, accesses in {
        torch.optim.AdamW([weight, unused]): 1 + 2 * 3,
        torch.optim.SGD([weight, unused], lr=0.1, momentum=0.9): 1 + 2 * 2,
        torch.optim.SGD([weight, unused], lr=0.1): 1 + 2,
    }.items():
        optimizer.step()
        assert optimizer_bytes(optimizer) == accesses * FP32 * 15


@pytest.mark.slow  # compiles
def test_a_compiled_step_has_all_its_work_and_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config, "fx_graph_cache", False)
    monkeypatch.setattr(torch._functorch.config, "enable_autograd_cache", False)
    torch._dynamo.reset()
    first, second = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)
    frames = torch.randn(64, 16)

    def forward(frames: Tensor) -> Tensor:
        return second(F.gelu(first(frames)))

    with counts.recorded() as kernels:
        compiled = torch.compile(forward)
        compiled(frames).square().sum().backward()
        kernels.calls.clear()
        out = compiled(frames)
        gelu = kernels.work()
        kernels.calls.clear()
        out.square().sum().backward()
        gelus_gradient = kernels.work()
        with Counts() as counter:
            compiled(frames).sum()
    hidden = 64 * 32 * FP32
    assert [(work.calls, work.bytes) for work in gelu.values()] == [(1, 2 * hidden)]
    # Two are read: what came in, and the gradient; one is written.
    assert [work.bytes for work in gelus_gradient.values()] == [3 * hidden]
    # The compiled code ran as it is, and its products were seen.
    assert [operation.name for operation in counter.work if "mm" in operation.name] == (
        ["aten::mm"] * 2
    )
    assert sum(work.flops for work in counter.work.values()) == 2 * 64 * 32 * (16 + 8)

    def train() -> None:
        compiled(frames).square().sum().backward()

    step = functools.partial(timeit.timeit, train, number=1)
    seconds = seconds_of_step(step, {"aten::mm", "aten::sum"})
    assert all(seconds[kernel] > 0 for kernel in (*gelu, *gelus_gradient))
    assert seconds[Operation("aten::mm", ((64, 16), (16, 32), (64, 32)))] > 0
    assert seconds[Operation(BETWEEN)] > 0


def test_an_operators_time_has_that_of_the_operators_it_calls() -> None:
    images = torch.randn(8, 64, 64)
    step = functools.partial(timeit.timeit, lambda: images.to(torch.float64), number=1)
    seconds = seconds_of_step(step, {"aten::_to_copy", "aten::copy_"})
    # `to` calls `_to_copy`, which calls `copy_`.
    assert {operation.name for operation in seconds} == {"aten::to", "aten::_to_copy", BETWEEN}
    assert seconds[Operation("aten::_to_copy", ((8, 64, 64),))] > 0


# --------------------------------------------------------------------------------------------------
# Work, times and limits together, and the command


def test_the_slower_of_both_limits_holds_operator_by_operator() -> None:
    limits = Limits({"bfloat16": 2000.0, "float32": 100.0}, 10.0)
    small, large = Operation("aten::mm", ((1, 1),)), Operation("aten::mm", ((9, 9),))
    work = {
        small: Work(3, 40, 100, "bfloat16"),  # 0.05 s of products, 4 s of copies
        large: Work(1, 10, 600, "float32"),  # 6 s of products, 1 s of copies
        ADD: Work(2, 20),
    }
    seconds = {small: 5.0, large: 8.0, ADD: 1.0, Operation(BETWEEN): 7.0}
    parts = {part.name + part.shapes: part for part in operations(work, seconds, limits)}
    limited = {name: (part.limit_seconds, part.limited_by) for name, part in parts.items()}
    assert limited["aten::mm1×1"] == (4.0, COPIES) and limited["aten::mm9×9"] == (6.0, PRODUCTS)
    assert parts["aten::add"].share == 2.0  # caches may do that
    between, products, rest = groups(parts.values())  # 7, 3 and -1 s to gain
    assert (between.name, between.gain, between.limited_by) == (BETWEEN, 7.0, None)
    assert (products.seconds, products.limit_seconds, products.limited_by) == (13.0, 10.0, PRODUCTS)
    assert (products.calls, products.bytes, products.flops) == (4, 50, 700)
    assert between.seconds + products.seconds + rest.seconds == sum(seconds.values())


def test_disturbed_steps_are_left_out() -> None:
    disturbed = [{MM: 1.0, ADD: 1.0}, {MM: 90.0}, {MM: 2.0, ADD: 1.0}, {MM: 0.5}]
    assert middle_of(disturbed) == {MM: 1.5, ADD: 1.0}
    assert middle_of(disturbed[:1]) == disturbed[0]


@pytest.mark.slow  # starts a process, which compiles
def test_a_compiled_step_is_measured_group_by_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--compiler-opt", "--amp_level=O0", "--batch_size=4", "--workers=0", "--threads=1"]
    assert main(["roofline", TASK, *words, "--rounds", "1", "--out", str(out)]) == 0
    roofline = read_roofline(out / "roofline.json")
    by_name = {group.name: group for group in roofline.groups}
    # [4, 3, 16, 16] → [4, 16, 16, 16] → [4, 32, 8, 8]; no gradient of the images
    first, second = 2 * 4 * 256 * 16 * 3 * 9, 2 * 4 * 64 * 32 * 16 * 9
    assert by_name["convolutions, forward"].flops == first + second
    assert by_name["convolutions, backward"].flops == first + 2 * second
    weights = 3 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 32 * 4 + 4
    assert by_name[OPTIMIZER].bytes == 7 * 4 * weights  # AdamW's one pass
    assert by_name[FUSED].bytes > 4 * 4 * 16 * 256  # ReLU reads and writes at least that
    assert roofline.seconds == pytest.approx(roofline.profiled_seconds, rel=1e-6)
    assert all(part.calls and part.seconds for part in roofline.operations if part.group == FUSED)
    limits, printed = roofline.limits, capsys.readouterr().out
    assert set(limits.flops_per_second) == {"float32"} and limits.copy_bytes_per_second > 1e8
    assert "Most to gain: " in printed and str(out / "roofline.json") in printed
    assert main(["roofline", TASK, "--out", str(out)]) == 2  # holds another's results


def test_what_does_not_belong_is_refused_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_estimate, "free_bytes", lambda: 1e6)
    for gpus, words, values in (
        (0, ["resnet5"], ["resnet5", "resnet50"]),
        (0, [TASK, "--max_steps", "5"], ["--max-steps"]),
        (0, [TASK, "--rounds", "0"], ["rounds", 0]),
        (0, ["resnet50"], ["resnet50", "GiB of memory"]),
        (1, [TASK], ["GPU", "CUDA_VISIBLE_DEVICES="]),
    ):
        monkeypatch.setattr(hardware, "gpu_count", lambda gpus=gpus: gpus)
        code = main(["roofline", *words, "--out", str(tmp_path / "out")])
        check_refused_command(code, capsys.readouterr().err, *values)
    assert not (tmp_path / "out").exists()
