"""What of the GPU side ran, and where: the table of docs/guides/gpu.md.

A path names the test that runs it on the fake device. docs/generated.py makes the table; it fails
for a test that does not exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent / "tests"


class CudaPath(NamedTuple):
    """A part of the package that only a GPU uses.

    `test` is `file::function` below tests/, or None with the reason in `because`.
    """

    what: str
    test: str | None
    because: str = ""


_INSIDE = "fake_gpu/inside_{}.py::{}".format
_COMMAND = "fake_gpu/test_commands.py::test_{}".format
PATHS = (
    CudaPath(
        "own kernels against their references",
        "kernels/test_compression_operator.py"
        "::test_the_kernels_on_the_device_give_the_bytes_of_the_reference",
    ),
    CudaPath(
        "own kernels in a training step: stream, device, values",
        _INSIDE("steps", "test_the_losses_are_those_of_the_cpu"),
    ),
    CudaPath(
        "a step that never makes the host wait",
        _INSIDE("steps", "test_the_host_never_waits_in_a_step"),
    ),
    CudaPath(
        "gradient scaling and skipped steps",
        _INSIDE("steps", "test_an_overflow_is_skipped_without_waiting"),
    ),
    CudaPath(
        "sync-free optimizers against torch's",
        "kernels/test_updates_on_the_device.py::test_updates_do_not_wait_and_are_torchs",
    ),
    CudaPath(
        "CUDA graphs: forward and backward captured and replayed",
        _INSIDE("steps", "test_forward_and_backward_are_captured_and_replayed"),
    ),
    CudaPath(
        "captured models: gradients that add up, outputs that are kept",
        _INSIDE("graphs", "test_gradients_add_up_over_replays"),
    ),
    CudaPath(
        "host time and launches of a step",
        "fake_gpu/test_host_time.py::test_the_host_queues_a_captured_step_as_two_launches",
    ),
    CudaPath(
        "tracing by the compiler",
        _INSIDE("steps", "test_the_compiler_traces_a_step_whole"),
    ),
    CudaPath(
        "batches copied ahead on a stream of their own",
        _INSIDE("loader", "test_batches_are_those_of_the_loader_though_memory_is_used_again"),
    ),
    CudaPath(
        "training of all eleven tasks, eager and accelerated, fp32 and mixed precision",
        _INSIDE("training", "test_the_accelerated_training_is_that_of_eager"),
    ),
    CudaPath(
        "DistributedDataParallel and `accelerate_ddp` on two devices",
        "fake_gpu/test_device.py::test_two_ranks_average_their_gradients",
    ),
    CudaPath("code that Inductor and Triton generate", None, "compiled, and not executed there"),
    CudaPath(
        "`gallery compare`, its verdict and parity; the compiler is `aot_eager`",
        _COMMAND("a_comparison_gives_a_verdict_with_parity_and_only_its_ranks_use_the_device"),
    ),
    CudaPath("`gallery bench`", _COMMAND("a_bench_publishes_its_figures")),
    CudaPath("`gallery doctor`", _COMMAND("doctor_names_the_device_and_uses_it_not")),
    CudaPath("`--tune`", _COMMAND("a_training_keeps_the_choice_of_its_tuning")),
    CudaPath(
        "a timeline of gradients, recorded on two devices",
        "fake_gpu/test_device.py::test_two_ranks_record_when_their_gradients_are_ready",
    ),
    CudaPath(
        "device memory that runs out",
        "fake_gpu/test_out_of_memory.py::test_a_run_that_does_not_fit_says_so",
    ),
    CudaPath("`torch.profiler` on the device", None, "CUPTI ends the process there"),
    CudaPath("NCCL", None, "needs devices; gloo stands in"),
    CudaPath("speed", None, "needs a device"),
)


def table() -> str:
    """Return the table as Markdown.

    Raises:
        SystemExit: for a test that does not exist.
    """
    rows = ["| what | on the fake device, in CI | on a GPU |", "|---|---|---|"]
    for path in PATHS:
        if path.test is None:
            where = f"no: {path.because}"
        else:
            file, _, function = path.test.partition("::")
            if f"def {function}(" not in (TESTS / file).read_text(encoding="utf-8"):
                raise SystemExit(f"docs/cuda_paths.py: there is no test {path.test}")
            where = f"yes: `{function}`"
        rows.append(f"| {path.what} | {where} | not run |")
    return "\n".join(rows)
