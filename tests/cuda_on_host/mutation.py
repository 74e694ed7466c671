"""Break each kernel in three ways, and check that the tests notice every time.

    python tests/cuda_on_host/mutation.py [--only TEXT]

A mutation is one replacement in one source. The tests of that source are run against the broken
copy, on the CPU. A mutation that survives is printed, and the exit code is 1. Each takes a few
seconds, most of them g++'s.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from cuda_on_host import host
from planted_faults import Fault, try_each

from gallery_lib.kernels.runtime.nvrtc import SOURCES

TESTS = Path(__file__).resolve().parents[1]


def _mutations(
    kernel: str, source: str, after: str, tests: str, *changes: tuple[str, str]
) -> list[Fault]:
    return [Fault(kernel, source, old, new, tests, after) for old, new in changes]


_ORDER, _BOUND = "order_of_threads and host", "test_every_element and host"
_STATISTICS = f"(test_cuda_operators and not image) or ({_ORDER} and norms_of_gradients)"
_LAMB = f"({_BOUND} or skipped or moves) and lamb"
_CROSS_ENTROPY = f"(test_cross_entropy and host) or ({_ORDER} and losses)"
_MOMENTS = f"(test_batch_norm and host and statistics_are) or ({_ORDER} and batch_norms)"
_GRADIENT = "test_batch_norm and test_every_result and host"
_PACKED = "test_compression and host and (arrives or overflow)"
_ADDED = "test_compression and host and added_up"
MUTATIONS = [
    *_mutations(
        "sum_squares", "gradient_statistics.cu", "sum_squares", _STATISTICS,
        ("tail < chunk.size", "tail + 1 < chunk.size"),  # forgets the last element
        # Reads past the end.
        (
            "int vectors = (chunk.size - head) / WIDTH",
            "int vectors = (chunk.size - head + WIDTH - 1) / WIDTH",
        ),
        ("elements_before_boundary(elements)", "elements_before_boundary(elements + 1)"),
    ),
    *_mutations(
        "finish_norm", "gradient_statistics.cu", "finish_norm", _STATISTICS,
        ("i += THREADS", "i += 2 * THREADS"),
        ("isfinite(total) ? 0.0f : 1.0f", "isnan(total) ? 1.0f : 0.0f"),
        ("sqrt(total)", "total"),
    ),
    *_mutations(
        "sum_squares (and LAMB's norms)", "sum_of_squares.cuh", "struct", _STATISTICS,
        ("magnitude > 0x1p50f", "magnitude > 0x1p120f"),  # squares overflow
        ("magnitude < 0x1p-50f", "magnitude < 0.0f"),  # squares vanish
        ("    __syncthreads();\n", ""),
    ),
    *_mutations(
        "advance", "optimizers.cu", "advance(",
        "test_optimizer_step and (skip or every_element or more_tensors)",
        (" && !a.skips())", ")"),
        ("tensor = threadIdx.x;", "tensor = threadIdx.x + 1;"),
        ("+= 1.0f", "+= 2.0f"),
    ),
    *_mutations(
        "sgd", "optimizers.cu", "struct SGD", f"{_BOUND} and sgd",
        ("gradient + momentum * buffer : buffer", "buffer : buffer"),
        ("gradient += decay * weight;", ""),
        ("weight -= rate", "weight += rate"),
    ),
    *_mutations(
        "rmsprop", "optimizers.cu", "struct RMSprop", f"{_BOUND} and rmsprop",
        ("variance -= average * average;", ""),
        ("sqrtf(variance) + epsilon", "sqrtf(variance + epsilon)"),
        ("update = buffer = momentum * buffer + update", "update = momentum * buffer + update"),
    ),
    *_mutations(
        "adamw", "optimizers.cu", "struct AdamW", f"{_BOUND} and adamw",
        ("keep2 * square + take2 * gradient * gradient", "keep2 * square + take2 * gradient"),
        ("weight * shrink", "weight"),
        ("a.log_beta2, a.step(tensor)", "a.log_beta2, a.step(tensor) + 1"),
    ),
    *_mutations(
        "radam", "optimizers.cu", "struct RAdam", f"{_BOUND} and radam",
        ("scalars[1] = rho > 5", "scalars[1] = rho > 4"),
        ("(rho - 4) * (rho - 2)", "(rho - 4) * (rho - 4)"),
        ("a.flags & DECOUPLED ? 0.0f : float(a.weight_decay)", "0.0f"),
    ),
    *_mutations(
        "lamb_moments", "lamb.cu", "struct Moments", _LAMB,
        ("weights.add(weight);", "weights.add(average);"),
        ("scratch[1]);", "scratch[0]);"),  # two sums through the same memory
        ("    if (a.skips()) return;\n", ""),
    ),
    *_mutations(
        "lamb_trust_ratios", "lamb.cu", "void __launch_bounds__(THREADS) lamb_trust_ratios", _LAMB,
        ("sqrt(weights / updates)", "weights / updates"),
        ("updates += a.partial[2 * block + 1]", "updates += a.partial[2 * block]"),
        (
            "block < a.tensors.first_block[blockIdx.x + 1]",
            "block <= a.tensors.first_block[blockIdx.x + 1]",
        ),
    ),
    *_mutations(
        "lamb_update", "lamb.cu", "struct Update", _LAMB,
        ("weight -= rate", "weight -= 1.001f * rate"),
        ("if (a.skips()) return;", ""),
        ("    __syncthreads();\n", ""),
    ),
    *_mutations(
        "cross_entropy_rows", "cross_entropy.cu", "struct RowStatistics", _CROSS_ENTROPY,
        ("fmaf(sum, exponential(maximum - larger), others)", "sum + others"),  # without rescaling
        ("maximum = LOWEST", "maximum = -__builtin_inff()"),
        ("if (tail < classes) part.add<ADDS_LOGITS>(load_vector<1>(elements + tail));", ""),
    ),
    *_mutations(
        "cross_entropy_gradient", "cross_entropy.cu", "cross_entropy_gradient(", _CROSS_ENTROPY,
        ("exponential(logit - log_sum) - each", "exponential(logit - log_sum)"),
        ("    __syncthreads();\n", ""),
        ("a.gradient + row * a.classes", "a.gradient + row * a.row_stride"),
        ("if (!is_aligned<WIDTH>(gradient + head)) head = 0, vectors = 0;", ""),
    ),
    *_mutations(
        "prepare_images", "image_batch.cu", "prepare_images(", "test_cuda_operators and image",
        ("a.size - start < WIDTH ? a.size - start : WIDTH", "WIDTH"),  # beyond the end
        ("if (++channel == CHANNELS) channel = 0;", ""),
        ("__fadd_rn(__fmul_rn(value, scale), shift)", "__fmul_rn(value, scale)"),
    ),
    *_mutations(
        "every optimizer: one pass", "optimizer_step.cuh", "",
        f"({_BOUND} or skipped) and (adamw or sgd)",
        ("bool aligned = is_aligned<WIDTH>", "bool aligned = true || is_aligned<WIDTH>"),
        ("    if (a.skips()) return;\n    Chunk", "    Chunk"),
        ("if (gradient_scale) factor /= *gradient_scale;", ""),
    ),
    *_mutations(
        "every kernel: chunks", "tensor_list.cuh", "chunk_of_block", f"{_BOUND} and (sgd or adamw)",
        ("left < CHUNK ? left : CHUNK", "CHUNK"),
        ("list.first_block[middle] <= blockIdx.x", "list.first_block[middle] < blockIdx.x"),
        ("* CHUNK;", "* (CHUNK - 4);"),
    ),
    *_mutations(
        "batch_norm_moments", "batch_norm.cu", "moments_of_slab", _MOMENTS,
        ("fmaf(off, value - mean[lane], squares[lane])", "fmaf(off, off, squares[lane])"),
        # Forgets half of the lanes.
        ("distance = TILE; distance < 32", "distance = 2 * TILE; distance < 32"),
        ("    __syncthreads();\n", ""),
    ),
    *_mutations(
        "batch_norm_combine", "batch_norm.cu", "struct CombineArguments", _MOMENTS,
        ("left < rows_per_part ? left : rows_per_part", "rows_per_part"),
        (" + a.count(part) * off * off", ""),
        ("(count > 1 ? count - 1 : 1)", "count"),
    ),
    *_mutations(
        "batch_norm_relu", "batch_norm.cu", "normalise_slab(const", _GRADIENT,
        ("relu(affine(lane, to_float(vector.at[lane])))", "relu(to_float(vector.at[lane]))"),
        ("row < place.rows;", "row + 1 < place.rows;"),
        (
            "store_vector(a.result + place.at, vector)",
            "store_vector(a.result + place.at - place.channel, vector)",
        ),
    ),
    *_mutations(
        "batch_norm_sums", "batch_norm_backward.cu", "sums_of_slab(const", _GRADIENT,
        ("is_blocked(affine(lane, value))", "is_blocked(value)"),
        ("value - affine.mean[lane], products[lane]", "value, products[lane]"),
        ("    __syncthreads();\n", ""),
    ),
    *_mutations(
        "batch_norm_totals", "batch_norm_backward.cu", "batch_norm_totals(", _GRADIENT,
        ("slab += LANES", "slab += 2 * LANES"),
        ("product * a.inverse_deviation[channel]", "product"),
        # Two sums through the same memory.
        ("over_lanes(gradient, scratch[1])", "over_lanes(gradient, scratch[0])"),
    ),
    *_mutations(
        "batch_norm_input", "batch_norm_backward.cu", "gradient_of_slab(const", _GRADIENT,
        (" - average[lane]", ""),
        ("is_blocked(affine(lane, value))", "is_blocked(value)"),
        ("double(a.shape.rows)", "double(a.shape.rows + 1)"),
    ),
    *_mutations(
        "every kernel of batch norm", "batch_norm.cuh", "place_of_thread",
        "test_batch_norm and host",
        ("left < shape.rows_per_slab ? left : shape.rows_per_slab", "shape.rows_per_slab"),
        ("channel < shape.channels ? (rows", "shape.channels ? (rows"),
        # NaN becomes 0.
        ("value <= 0.0f ? 0.0f : value, result", "value > 0.0f ? value : 0.0f, result"),
    ),
    *_mutations(
        "every kernel: what rounds to 0", "scalars.cuh", "", "test_batch_norm and host and rounds",
        ("__half> = 0x1p-25f", "__half> = 0.0f"),
        ("__half> = 0x1p-25f", "__half> = 0x1p-24f"),
        ("__nv_bfloat16> = 0x1p-134f", "__nv_bfloat16> = 0x1p-133f"),
    ),
    *_mutations(
        "pack_int8", "compression.cu", "pack_int8(", _PACKED,
        ("rintf(values[i] / scale)", "truncf(values[i] / scale)"),
        ("    finite = __all_sync(0xffffffffu, finite);\n", ""),
        ("fmaf(-code, scale, values[i])", "values[i]"),
    ),
    *_mutations(
        "accumulate_int8", "compression.cu", "accumulate_int8(", _ADDED,
        ("[at / GROUP]", "[0]"),
        ("part + a.codes_from", "part"),
        ("rank < a.ranks", "rank + 1 < a.ranks"),
    ),
    *_mutations(
        "accumulate_int8: what is added", "compression.cu", "accumulate_int8(", _ADDED,
        ("fmaf(sum[i], a.factor, before[i])", "sum[i] + before[i]"),
        ("if (a.add) load", "load"),
        ("fmaf(values[i], scale, sum[i])", "fmaf(values[i], scale, 0.0f)"),
    ),
    *_mutations(
        "compression: loads and stores", "compression.cu", "void load(const", _PACKED,
        ("i < left ? to_float(from[i]) : 0.0f", "to_float(from[i])"),
        ("left >= EIGHT && is_aligned<WIDTH<T>>(from)", "left >= EIGHT"),
        ("if (i < left) from_float", "from_float"),
    ),
]  # fmt: skip


def fails(tests: str, sources: Path) -> bool:
    """Return whether a test fails with these sources."""
    host.SOURCES = sources
    with contextlib.redirect_stdout(io.StringIO()):
        options = ["-n0", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-k"]
        code = pytest.main([*options, tests, str(TESTS / "kernels")])
    assert code in (0, 1), (
        f"pytest ended with {code!r}: no test is called {tests!r}, or it could not run"
    )
    return code == 1


@functools.cache
def check_unbroken(tests: str) -> None:
    assert not fails(tests, SOURCES), f"{tests!r} fails without a mutation"


def noticed(mutation: Fault) -> str | None:
    check_unbroken(mutation.tests)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
        mutation.plant(Path(folder))
        return "by its tests" if fails(mutation.tests, Path(folder)) else None


if __name__ == "__main__":
    # A failure is enough; it need not be shrunk.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutation", phases=phases, database=None)
    hypothesis.settings.load_profile("mutation")
    sys.exit(try_each(MUTATIONS, noticed, __doc__))
