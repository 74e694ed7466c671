"""Table of techniques: whether each applies on this machine, else what is missing."""

from __future__ import annotations

import importlib.util

from gallery_lib.compiler.passes import small_convolutions
from gallery_lib.console.table import Rows
from gallery_lib.kernels import mixed_product
from gallery_lib.memory import allocator
from gallery_lib.system import hardware


def technique_rows() -> Rows:
    """Return the table, with a line for each technique."""
    compiler, gpus = hardware.cpp_compiler(), hardware.gpu_count()
    return [
        ["technique", "here"],
        [
            "compiler on the CPU",
            compiler or "missing: a C++ compiler (Debian, Ubuntu: apt-get install g++)",
        ],
        ["allocator", _allocator()],
        ["channels_last", _channels_last()],
        *(_of_a_step_on_gpu() if gpus else _of_a_step_on_cpu(has_compiler=bool(compiler))),
        ["another allocator", _other_allocators()],
        ["bfloat16 on the CPU", _bfloat16()],
        ["GPU", f"{gpus}" if gpus else "none: everything for CUDA is not measured here"],
        ["own CUDA kernels", "used with compiler-opt" if gpus else "not used: no CUDA device"],
        [
            "several processes",
            f"{gpus} GPU(s)" if gpus else f"{hardware.cores()} core(s), shared by all processes",
        ],
        ["TensorBoard log", _tensorboard()],
    ]


def _of_a_step_on_gpu() -> Rows:
    """Return the lines of techniques that have one form for any GPU."""
    return [
        ["attention", "torch's own"],
        ["dropout, masks, max pooling, products", "as the compiler writes them"],
        ["optimizer", "own kernels, else torch's fused form"],
        ["loading", "as it is: the GPU computes"],
    ]


def _of_a_step_on_cpu(*, has_compiler: bool) -> Rows:
    """Return the lines of techniques whose form on a CPU needs a C++ compiler."""
    convolutions = small_convolutions.reason_not_applied() if has_compiler else "no C++ compiler"
    products = mixed_product.reason_not_available() if has_compiler else "no C++ compiler"
    return [
        [
            "attention",
            "over short sequences as plain products"
            if has_compiler
            else "torch's own: no C++ compiler",
        ],
        [
            "small convolutions",
            f"torch's own: {convolutions}" if convolutions else "in bfloat16, as matrix products",
        ],
        [
            "products of few rows",
            f"torch's own: {products}"
            if products
            else "in bfloat16, by weights as they lie in fp32",
        ],
        ["max pooling", "in C++" if has_compiler else "torch's own: no C++ compiler"],
        [
            "dropout and masks",
            "by vector instructions" if has_compiler else "torch's own: no C++ compiler",
        ],
        [
            "optimizer",
            "in one pass"
            if has_compiler
            else "torch's own, fused where it has such a form: no C++ compiler",
        ],
        ["loading", "by processes of low priority, beside the step's threads"],
    ]


def _allocator() -> str:
    reason = allocator.reason_not_applied()
    return "applies" if reason is None else f"does not apply: {reason}"


def _channels_last() -> str:
    if hardware.prefers_channels_last(hardware.device_type()):
        return "applies"
    return "not used: convolutions on a CPU without AVX-512 gain nothing from it"


def _other_allocators() -> str:
    if names := ", ".join(allocator.installed()):
        return f"found: {names}; used when LD_PRELOAD names it"
    return "none found: glibc's is used"


def _bfloat16() -> str:
    if hardware.computes_in_bf16("cpu"):
        return "has units for it: O1 gains"
    return (
        "no units for it: O1 is emulated and slower than O0; compiler-opt computes it on the fp32 "
        "units"
    )


def _tensorboard() -> str:
    available = importlib.util.find_spec("tensorboard") is not None
    return "available" if available else "missing: pip install tensorboard"
