"""Tests inside a process with the fake device: the device brings out what a program forgot.

test_device.py runs them in several orders of the streams' work.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import sys

import pytest
import torch
from fake_gpu import work
from fake_gpu.running import ROOT

from gallery_lib.kernels.compression import pack
from gallery_lib.kernels.gradient_statistics import gradient_statistics
from gallery_lib.kernels.runtime import launch
from gallery_lib.system import gpu, hardware
from gallery_lib.system.machine_load import Watch

sys.path.insert(0, str(ROOT / "benchmarks"))
import figures_file

ORDER = os.environ["FAKE_GPU_ORDER"]
late_only = pytest.mark.skipif(ORDER != "late", reason="the order late alone promises it")
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs FAKE_GPU_DEVICES=2")
DEVICE = torch.device("cuda", 0)
EVENT = functools.partial(torch.cuda.Event, enable_timing=True)


@pytest.fixture(autouse=True)
def kernels_on(monkeypatch):
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "1")
    monkeypatch.setenv("GALLERY_KERNELS", "1")


@pytest.fixture
def ordered():
    """Set the order of the streams' work within a test; the process's own comes back."""
    yield lambda order: work.LIBRARY.fake_gpu_order(order.encode())
    work.LIBRARY.fake_gpu_order(ORDER.encode())


@late_only
def test_work_begins_when_somebody_waits_for_it():
    values = torch.full((4,), torch.nan, device=DEVICE)
    torch.cuda.synchronize()
    values.fill_(1)
    assert work.alias(values).isnan().all()
    torch.cuda.synchronize()
    assert work.alias(values).eq(1).all()


def test_values_are_those_of_the_cpu():
    x = torch.randn(64, 32)
    on_device = x.to(DEVICE)
    expected = torch.softmax(x @ x.T, 1).sum(0)
    assert torch.equal(torch.softmax(on_device @ on_device.T, 1).sum(0).cpu(), expected)
    assert torch.equal(on_device[on_device > 0.5].cpu(), x[x > 0.5])  # a shape that values decide


def written_on_a_side_stream(with_wait: bool) -> torch.Tensor:
    """Return what the current stream reads of a value that another stream writes."""
    value = torch.zeros(1000, device=DEVICE)
    side = torch.cuda.Stream(DEVICE)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        value.add_(1)
    if with_wait:
        torch.cuda.current_stream().wait_stream(side)
    read = value * 1
    value.record_stream(side)
    return read.cpu()


def copied_ahead(with_record: bool) -> torch.Tensor:
    """Return what is read of a batch made on a side stream, whose memory is used again there."""
    side = torch.cuda.Stream(DEVICE)
    with torch.cuda.stream(side):
        batch = torch.full((4096,), 1.0, device=DEVICE)
    torch.cuda.current_stream().wait_stream(side)
    if with_record:
        batch.record_stream(torch.cuda.current_stream())
    read = batch * 1
    del batch
    with torch.cuda.stream(side):
        torch.full((4096,), 2.0, device=DEVICE)
    return read.cpu()


@pytest.mark.parametrize(
    ("program", "order"), [(written_on_a_side_stream, "late"), (copied_ahead, "early")]
)
def test_what_is_forgotten_shows_in_an_order_and_what_is_not_never_does(program, order, ordered):
    assert program(True).eq(1).all()
    ordered(order)
    assert not program(False).eq(1).all()


@late_only
def test_an_event_has_the_devices_time_once_the_device_has_come_to_it():
    values, began, ended = torch.zeros(4, device=DEVICE), *(EVENT() for _ in range(2))
    torch.cuda.synchronize()
    began.record()
    values.add_(1).mul_(2)
    ended.record()
    with pytest.raises(RuntimeError, match=r"not ready|must be completed|NotReady"):
        began.elapsed_time(ended)
    ended.synchronize()
    assert began.elapsed_time(ended) == 2000  # a second for each operator


def test_benchmarks_time_the_device_by_its_own_clock():
    values = torch.zeros(4, device=DEVICE)
    seconds = figures_file.seconds_of_calls(lambda: values.add_(1).mul_(2), 3)
    assert seconds == [2.0, 2.0, 2.0]


def test_clocks_power_and_other_processes_are_read_from_nvml(monkeypatch):
    first = hardware.visible_gpus()[0]
    assert gpu.look(first.bus) == gpu.GpuState(1755, 2619, 640.0, ["power cap"])
    assert gpu.look("0000:00:40.0") is None  # there is no such device
    assert first.memory_bytes == torch.cuda.get_device_properties(0).total_memory
    watch = Watch()
    for other, seen in (("0", 0), ("1", 1), ("0", 1)):  # at one of the pauses
        monkeypatch.setenv("FAKE_GPU_OTHER", other)
        watch.at_pause()
        assert watch.seen().gpu_processes == seen
    assert gpu.other_processes(os.getppid()) == 0
    assert gpu.other_processes(1) is not None


@pytest.mark.parametrize("pinned", [False, True])
def test_pinned_memory_that_is_written_too_early_shows_and_pageable_is_read_at_the_call(
    ordered, pinned
):
    ordered("late")
    values = torch.ones(8).pin_memory() if pinned else torch.ones(8)
    copied = values.to(DEVICE, non_blocking=True)
    values.fill_(3)
    assert copied.cpu().eq(3 if pinned else 1).all()


@pytest.mark.parametrize(
    "wait",
    [
        torch.cuda.synchronize,
        lambda: torch.ones(1, device=DEVICE).item(),
        lambda: torch.ones(3, device=DEVICE).nonzero(),
        lambda: torch.ones(3, device=DEVICE).cpu(),
        lambda: torch.cuda.current_stream().synchronize(),
    ],
)
def test_waiting_is_an_error_where_it_is_forbidden(wait):
    forbidden = pytest.raises(RuntimeError, match=r"operation not permitted|forbids it")
    with work.waiting_forbidden(), forbidden:
        wait()


def test_a_captured_graph_runs_again_with_new_inputs():
    x, weight = torch.zeros(4, 8, device=DEVICE), torch.ones(8, 2, device=DEVICE)
    with work.on_a_side_stream(DEVICE):
        x @ weight
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (x @ weight).relu()
    for value in (1.0, -1.0, 2.0):
        x.fill_(value)
        graph.replay()
        assert result.cpu().eq(max(0.0, 8 * value)).all()


def test_waiting_during_a_capture_is_refused():
    with (
        pytest.raises(RuntimeError, match="during capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        torch.ones(1, device=DEVICE).item()


def test_memory_runs_out_at_the_chosen_allocation():
    torch.cuda.empty_cache()
    work.LIBRARY.fake_gpu_fail_allocation(1)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(2**28, device=DEVICE)
    finally:
        work.LIBRARY.fake_gpu_fail_allocation(-1)
    assert torch.ones(2**20, device=DEVICE).sum().item() == 2**20


def test_random_numbers_follow_the_seed():
    drawn = []
    for seed in (1, 1, 2):
        torch.cuda.manual_seed(seed)
        drawn.append(torch.nn.functional.dropout(torch.ones(1000, device=DEVICE), 0.5).cpu())
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert 400 < drawn[0].count_nonzero() < 600


@two_devices
def test_a_kernel_goes_to_its_tensors_device():
    values = torch.arange(100.0)
    norm, _ = gradient_statistics([values.to("cuda:1")])
    assert torch.cuda.current_device() == 0 and norm.device.index == 1
    torch.testing.assert_close(norm.cpu(), values.norm())


@two_devices
def test_kernels_are_compiled_for_the_device_of_their_tensors(monkeypatch):
    compiled, asked = launch.compiled, []

    def noted(source: str, defines: object, architecture: int) -> object:
        asked.append(architecture)
        return compiled(source, defines, architecture)

    monkeypatch.setattr(launch, "compiled", noted)
    for cached in (launch._launcher, launch.architecture):
        cached.cache_clear()
    for number in range(2):
        gradient_statistics([torch.ones(64, device=f"cuda:{number}")])
    of_devices = [int(text) for text in os.environ["FAKE_GPU_ARCHITECTURES"].split(",")]
    assert len(set(of_devices)) == 2 and list(dict.fromkeys(asked)) == of_devices


def launch_of_packing(gradient: torch.Tensor) -> launch.Launch:
    """Return a launch that was not carried out."""
    seen: list[launch.Launch] = []
    with launch.carried_out_by(seen.append):
        pack(gradient)
    return seen[0]


@two_devices
def test_a_kernel_on_a_stream_of_another_device_is_refused():
    gradient = torch.ones(64, device="cuda:1")
    one = launch_of_packing(gradient)
    enqueue = launch._launcher(one.source, one.kernel, one.defines, 0)
    stream = torch.cuda.Stream("cuda:1").cuda_stream
    error = enqueue(one.blocks, stream, ctypes.addressof(one.arguments))
    assert error == "CUDA_ERROR_INVALID_HANDLE"


def test_a_launch_that_the_driver_refuses_is_an_error():
    gradient = torch.ones(64, device=DEVICE)
    one = launch_of_packing(gradient)
    with pytest.raises(launch.LaunchFailed, match="CUDA_ERROR_INVALID_VALUE"):
        launch.run(dataclasses.replace(one, blocks=2**31), DEVICE)
