"""A step's time in groups that add up; its bytes and FLOPs are those that one counts by hand."""

import functools
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
from gallery_lib.measure.roofline import (
    OWN,
    middle_of,
    operations,
    roofline_group,
    seconds_of_step,
)
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


def work_of_gradients(out: Tensor, *inputs: Tensor) -> dict[str, Work]:
    gradient = torch.ones_like(out)
    return work_of(lambda: torch.autograd.grad(out, inputs, gradient))


def test_products_forward_and_backward() -> None:
    a, b = leaf(3, 5), leaf(5, 7)
    once, moved = 2 * 3 * 5 * 7, FP32 * (15 + 35 + 21)
    assert vars(work_of(lambda: a @ b)["mm"]) == vars(Work(1, moved, once, "float32"))
    out = a @ b
    with Counts() as counter:
        out.backward(torch.ones(3, 7))
    products = [work for operation, work in counter.work.items() if operation.name == "aten::mm"]
    assert sum(work.flops for work in products) == 2 * once
    assert sum(work.bytes for work in products) == 2 * moved
    addmm = work_of(lambda: torch.addmm(torch.ones(7), a, b))["addmm"]
    assert (addmm.flops, addmm.bytes) == (once, FP32 * 7 + moved)
    half = [torch.ones(2, 3, 5, dtype=torch.bfloat16), torch.ones(2, 5, 7, dtype=torch.bfloat16)]
    bmm = work_of(lambda: torch.bmm(*half))["bmm"]
    assert vars(bmm) == vars(Work(1, BF16 * (30 + 70 + 42), 2 * once, "bfloat16"))


@pytest.mark.parametrize(("groups", "first"), [(1, False), (2, False), (1, True)])
def test_a_convolution_forward_and_backward(groups: int, first: bool) -> None:
    image, weight = torch.randn(2, 4, 8, 8, requires_grad=not first), leaf(6, 4 // groups, 3, 3)

    def convolve() -> Tensor:
        return F.conv2d(image, weight, stride=2, padding=1, groups=groups)

    forward = work_of(convolve)["convolution"]
    once = 2 * (2 * 6 * 4 * 4) * (4 // groups * 3 * 3)  # of each output: channels × kernel
    sizes = 2 * 4 * 8 * 8 + 6 * (4 // groups) * 9 + 2 * 6 * 4 * 4
    assert (forward.flops, forward.bytes) == (once, FP32 * sizes)
    out, inputs = convolve(), (weight,) if first else (image, weight)
    backward = work_of_gradients(out, *inputs)["convolution_backward"]
    # Without a gradient of the image, the weight is not read.
    times = 1 if first else 2
    read_and_written = out.numel() + times * (image.numel() + weight.numel())
    assert (backward.flops, backward.bytes) == (times * once, FP32 * read_and_written)


def test_element_wise_operators_move_bytes_and_count_no_flops() -> None:
    image, weight = torch.ones(2, 4, 5, 5), torch.ones(4, 3, 2, 2)
    work = work_of(lambda: F.conv_transpose2d(image, weight, stride=2))["convolution"]
    assert work.flops == 2 * (2 * 4 * 5 * 5) * (3 * 2 * 2)  # of each input: channels × kernel
    a, b = torch.ones(10, 3), torch.ones(10, 3)
    assert vars(work_of(lambda: a + b)["add"]) == vars(Work(1, FP32 * 90, 0, None))
    wide = torch.ones(10, 1).expand(10, 1000)
    for name, body, elements in (
        ("add_", lambda: a.add_(b), 90),  # two read, one written
        ("copy_", lambda: a.copy_(b), 60),  # what is overwritten: not read
        ("zero_", a.zero_, 30),
        ("mm", lambda: torch.mm(a.T, b, out=torch.empty(3, 3)), 69),
        ("sum", wide.sum, 10 + 1),  # in memory once
    ):
        assert work_of(body)[name].bytes == FP32 * elements
    assert not work_of(lambda: a.T.reshape(3, 10)[1:].detach()).keys() - {"clone"}


def test_batch_norm_forward_and_backward() -> None:
    image, weight, bias = leaf(4, 3, 5, 5), leaf(3), leaf(3)
    mean, variance = torch.zeros(3), torch.ones(3)

    def normalise() -> Tensor:
        return F.batch_norm(image, mean, variance, weight, bias, training=True)

    # Parameters and running statistics are read, the batch's statistics written. The schema does
    # not say that the running ones are changed.
    forward = work_of(normalise)["native_batch_norm"]
    assert forward.bytes == FP32 * (2 * image.numel() + 2 * 3 + 2 * 3 + 2 * 3)
    backward = work_of_gradients(normalise(), image, weight, bias)["native_batch_norm_backward"]
    # The weight, running and saved statistics are read, the gradients of both parameters written.
    assert backward.bytes == FP32 * (3 * image.numel() + 3 + 4 * 3 + 2 * 3)


def test_attention_forward_and_backward() -> None:
    n, heads, queries, keys, width = 2, 3, 8, 16, 4
    query = leaf(n, heads, queries, width)
    key, value = leaf(n, heads, keys, width), leaf(n, heads, keys, width)
    product, name = 2 * n * heads * queries * keys * width, "_scaled_dot_product_flash_attention_"
    forward = work_of(lambda: F.scaled_dot_product_attention(query, key, value))[f"{name}for_cpu"]
    sums, sizes = n * heads * queries, query.numel() + key.numel()  # logsumexp
    assert (forward.flops, forward.bytes) == (2 * product, FP32 * (2 * sizes + sums))
    work = work_of_gradients(F.scaled_dot_product_attention(query, key, value), query, key, value)
    backward = work[f"{name}for_cpu_backward"]  # 5 products, with the scores computed anew
    assert (backward.flops, backward.bytes) == (5 * product, FP32 * (4 * sizes + sums))


def test_tables_are_read_and_written_where_they_are_looked_up() -> None:
    table, indices = torch.ones(1000, 4), torch.tensor([1, 5, 5])
    looked_up = work_of(lambda: F.embedding(indices, table))["embedding"].bytes
    assert looked_up == INT64 * 3 + 2 * FP32 * 12
    added = work_of(lambda: table.index_put_((indices,), torch.ones(3, 4), accumulate=True))
    # Values read, and as many elements of the table read and written.
    assert added["index_put_"].bytes == INT64 * 3 + 3 * FP32 * 12
    places, values = torch.tensor([[1, 5, 5]]), torch.ones(1, 3)
    summed = work_of(lambda: torch.zeros(1, 1000).scatter_reduce_(1, places, values, "sum"))
    assert summed["scatter_reduce_"].bytes == INT64 * 3 + 3 * FP32 * 3


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
    out = tmp_path / "out"

    def check(words: list[str], *values: object) -> None:
        code = main(["roofline", *words, "--out", str(out)])
        check_refused_command(code, capsys.readouterr().err, *values)
        assert not out.exists()

    check(["resnet5"], "resnet5", "resnet50")
    check([TASK, "--max_steps", "5"], "--max-steps")
    check([TASK, "--rounds", "0"], "rounds", 0)
    monkeypatch.setattr(memory_estimate, "free_bytes", lambda: 1e6)
    check(["resnet50"], "resnet50", "GiB of memory")
    monkeypatch.setattr(hardware, "gpu_count", lambda: 1)
    check([TASK], "GPU", "CUDA_VISIBLE_DEVICES=")
