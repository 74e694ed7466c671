"""The shim runs kernels on the CPU as a device would, and notices what a kernel may not do.

There are mutations of every kernel, and the tests of the kernels notice them.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from cuda_on_host import host, mutation
from cuda_on_host.device import Guarded, GuardedMemory

from gallery_lib.kernels.runtime.launch import Launch
from gallery_lib.kernels.runtime.nvrtc import SOURCES


class Arguments(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
    )


SOURCE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Arguments { float* data; float* result; long long count; };
constexpr int SIZE = 256;

extern "C" __global__ void reverse(const Arguments a) {
    __shared__ float turned[SIZE];
    turned[SIZE - 1 - threadIdx.x] = a.data[threadIdx.x];
    __syncthreads();
    a.result[threadIdx.x] = turned[threadIdx.x];
}
extern "C" __global__ void reverse_without_barrier(const Arguments a) {
    __shared__ float turned[SIZE];
    turned[SIZE - 1 - threadIdx.x] = a.data[threadIdx.x];
    a.result[threadIdx.x] = turned[threadIdx.x];
}
extern "C" __global__ void two_exchanges_through_one_buffer(const Arguments a) {
    __shared__ float warps[SIZE / 32];
    float result = 0;
    for (int round = 0; round < 2; round++) {
        float value = __shfl_xor_sync(0xffffffffu, a.data[threadIdx.x] + round, 0);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        result += 1000 * round + warps[7 - threadIdx.x / 32];
        if (a.count == 1) __syncthreads();
    }
    a.result[threadIdx.x] = result;
}
extern "C" __global__ void reads_unwritten_shared(const Arguments a) {
    __shared__ float never[SIZE];
    a.result[threadIdx.x] = never[threadIdx.x];
}
extern "C" __global__ void some_skip_the_barrier(const Arguments a) {
    if (threadIdx.x < 100) return;
    __syncthreads();
}
extern "C" __global__ void half_a_warp_shuffles_for_all(const Arguments a) {
    if (threadIdx.x % 32 < 16) a.result[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
extern "C" __global__ void warp_functions(const Arguments a) {
    int lane = threadIdx.x % 32;
    float value = a.data[threadIdx.x], out = 0;
    if (a.count == 0) out = __shfl_xor_sync(0xffffffffu, value, 5);
    if (a.count == 1) out = (float)__ballot_sync(0xffffu << (lane / 16 * 16), lane % 2);
    if (a.count == 2) out = (float)__all_sync(0xffffffffu, threadIdx.x != 40);
    a.result[threadIdx.x] = out;
}
extern "C" __global__ void copy(const Arguments a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.result[i] = a.data[i];
}
struct alignas(16) Four { float at[4]; };
extern "C" __global__ void copy_fours(const Arguments a) {
    if (threadIdx.x < a.count) reinterpret_cast<Four*>(a.result)[threadIdx.x] = \
reinterpret_cast<const Four*>(a.data)[threadIdx.x];
}
extern "C" __global__ void round_to_half(const Arguments a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) reinterpret_cast<__half*>(a.result)[i] = __float2half_rn(a.data[i]);
}
extern "C" __global__ void round_to_bfloat16(const Arguments a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) reinterpret_cast<__nv_bfloat16*>(a.result)[i] = __float2bfloat16_rn(a.data[i]);
}
extern "C" __global__ void widen_half(const Arguments a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.result[i] = __half2float(reinterpret_cast<const __half*>(a.data)[i]);
}
extern "C" __global__ void widen_bfloat16(const Arguments a) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.result[i] = \
__bfloat162float(reinterpret_cast<const __nv_bfloat16*>(a.data)[i]);
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("cuda")
    (folder / "shim_probe.cu").write_text(SOURCE)

    def run(
        kernel: str,
        data: torch.Tensor,
        result: torch.Tensor,
        count: int | None = None,
        schedule: int = 0,
        before: int = 0,
    ):
        count = data.numel() if count is None else count
        arguments = Arguments(data.data_ptr() - before, result.data_ptr(), count)
        host.run(
            Launch("shim_probe.cu", kernel, (), max(1, -(-count // 256)), arguments),
            schedule,
            folder,
        )
        return result

    return run


NUMBERS = torch.arange(256, dtype=torch.float32)


@pytest.mark.parametrize("schedule", [0, 1, 2, 3])
def test_a_barrier_is_honoured_and_missed_in_every_order_of_threads(run, schedule):
    for kernel in ("reverse", "reverse_without_barrier"):
        result = run(kernel, NUMBERS, torch.empty(256), schedule=schedule)
        assert torch.equal(result, NUMBERS.flip(0)) == (kernel == "reverse")


@pytest.mark.parametrize("schedule", [0, 1, 2, 3, 5])
def test_warps_run_ahead_of_each_other_where_no_barrier_holds_them(run, schedule):
    """One barrier is too few when shared memory is used again.

    Threads behind find what those ahead have written.
    """
    expected = 2 * NUMBERS.view(8, 32)[:, :1].flip(0).expand(8, 32).flatten() + 1001
    for held in (0, 1):
        exchanged = "two_exchanges_through_one_buffer", NUMBERS, torch.empty(256)
        right = torch.equal(run(*exchanged, count=held, schedule=schedule), expected)
        assert right == (held == 1 or schedule % 2 == 0)


def test_shared_memory_is_poisoned_before_every_block(run):
    run("reverse", NUMBERS, torch.empty(256))
    assert run("reads_unwritten_shared", NUMBERS, torch.zeros(256)).isnan().all()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("some_skip_the_barrier", "never reach"),
        ("half_a_warp_shuffles_for_all", "has left the kernel"),
    ],
)
def test_a_barrier_or_an_exchange_without_all_threads_is_a_fault(run, kernel, words):
    with pytest.raises(host.KernelFault, match=words):
        run(kernel, NUMBERS, torch.empty(256))


@pytest.mark.parametrize("schedule", [0, 1, 7])
def test_warp_functions_move_values_as_documented(run, schedule):
    lane, warp = torch.arange(256) % 32, torch.arange(256) // 32
    ballots = torch.where(lane < 16, 0xAAAA, 0xAAAA0000).float()
    for kind, expected in enumerate(
        (NUMBERS[warp * 32 + (lane ^ 5)], ballots, (warp != 1).float())
    ):
        got = run("warp_functions", NUMBERS, torch.empty(256), count=kind, schedule=schedule)
        assert torch.equal(got, expected), kind


@pytest.mark.parametrize(
    ("offset", "read"), [(None, {"count": 301}), (0, {"count": 300, "before": 4})]
)
def test_an_access_past_the_end_or_before_the_start_is_a_fault(run, offset, read):
    for _ in range(2):  # Python goes on after a fault
        with pytest.raises(host.KernelFault, match="outside of memory"):
            run("copy", Guarded(torch.ones(300), offset).tensor, torch.empty(512), **read)
    assert run("copy", NUMBERS, torch.empty(256)).equal(NUMBERS)


def test_a_write_beside_a_tensor_is_noticed(run):
    memory = GuardedMemory()
    run("copy", torch.ones(20), memory.new(10, dtype=torch.float32, offset=3), count=11)
    with pytest.raises(AssertionError, match="4 bytes beside"):
        memory.check()


def test_a_misaligned_vector_is_a_fault(run):
    run("copy_fours", Guarded(torch.ones(8), 4).tensor, torch.empty(8), count=2)
    with pytest.raises(host.KernelFault, match="misaligned"):
        run("copy_fours", Guarded(torch.ones(8), 1).tensor, torch.empty(8), count=2)


def interesting_floats(dtype: torch.dtype) -> torch.Tensor:
    """Return all values of a 16-bit type, the midpoints between them, and the floats beside."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    bits = every.view(torch.int32)
    shift = 16 if dtype is torch.bfloat16 else 13
    middle = torch.cat(
        [(bits + 2 ** (shift - 1) + delta).view(torch.float32) for delta in (-1, 0, 1)]
    )
    denormals = torch.arange(1, 4096, dtype=torch.float32) * 2.0**-26
    return torch.cat(
        [every, middle, denormals, -denormals, torch.tensor([65519.996, 65520.0, 3.4e38, -3.4e38])]
    )


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "half"), (torch.bfloat16, "bfloat16")])
def test_rounding_to_16_bits_is_that_of_torch_and_widening_is_exact(run, dtype, name):
    values = interesting_floats(dtype)
    got = run(f"round_to_{name}", values, torch.empty(len(values), dtype=dtype))
    expected = values.to(dtype)
    numbers = ~expected.isnan()
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.view(torch.int16)[numbers], expected.view(torch.int16)[numbers])
    wide = run(f"widen_{name}", expected, torch.empty(len(expected)))
    assert torch.equal(wide.nan_to_num(nan=12345.0), expected.float().nan_to_num(nan=12345.0))


def test_every_kernel_is_broken_in_three_ways_at_least():
    kernels = {
        name
        for path in SOURCES.glob("*.cu")
        for name in re.findall(r"\) (\w+)\(const __grid_constant__", path.read_text())
    }
    counts = Counter(each.what for each in mutation.MUTATIONS)
    assert kernels <= set(counts)
    assert min(counts.values()) == 3


@pytest.mark.thorough
@pytest.mark.slow
def test_the_tests_notice_what_is_broken():
    """One kernel here; all of them take minutes."""
    command = [sys.executable, str(Path(mutation.__file__)), "--only", "finish_norm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 noticed" in done.stdout
