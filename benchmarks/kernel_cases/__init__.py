"""Cases of benchmarks/kernels.py: each kernel's work, done by torch, torch.compile and the kernel.

A case is built where it is to run, and at a small size for the tests. Two calls with the same state
give the same values on all sides (tests/project/test_kernel_benchmark.py). The sizes are those of
training on a large device.
"""

from __future__ import annotations

from gallery_lib.kernels.compression_layout import WIRES
from kernel_cases.case import Build
from kernel_cases.layers import batch_norm, cross_entropy_loss, images
from kernel_cases.optimizers import OPTIMIZERS, optimizer_step, statistics
from kernel_cases.wire import accumulate, pack

CASES: dict[str, Build] = {
    "gradientstatistics, ResNet-50": statistics,
    **{
        f"{name}, {model}": optimizer_step(name, model)
        for name in OPTIMIZERS
        for model in ("ResNet-50", "ViT-S/16")
    },
    "batch_norm_relu, 64×112²": batch_norm(64, 112, False),
    "batch_norm_relu, 256×56²": batch_norm(256, 56, False),
    "batch_norm_relu, 2048×7²": batch_norm(2048, 7, False),
    "batch_norm_relu + add, 256×56²": batch_norm(256, 56, True),
    "batch_norm_relu + add, 2048×7²": batch_norm(2048, 7, True),
    "cross_entropy, 2048×50257": cross_entropy_loss,
    "prepare_images, 256×224²": images,
    **{f"pack {wire}": pack(wire) for wire in WIRES},
    **{f"accumulate {wire}, 8 ranks": accumulate(wire) for wire in WIRES},
}
