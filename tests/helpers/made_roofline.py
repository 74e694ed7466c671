"""A roofline as that of ResNet-50 looks like, made of figures."""

from __future__ import annotations

from gallery_lib.measure.operator_counts import Operation, Work
from gallery_lib.measure.roofline import operations
from gallery_lib.measure.roofline_result import BETWEEN, Limits, Roofline, groups
from gallery_lib.measure.step_profile import OPTIMIZER
from gallery_lib.system.machine_load import MachineLoad

LIMITS = Limits({"bfloat16": 2e12}, 25e9)
CONVOLUTION = Operation("aten::convolution_backward", ((16, 2048, 7, 7), (16, 512, 14, 14)) * 2)
KERNEL = Operation(f"generated::cpp_fused_{'native_batch_norm_' * 5}12 (graph 2)")
WORK = {
    CONVOLUTION: Work(53, 1_000_000_000, 260_000_000_000, "bfloat16"),
    KERNEL: Work(1, 5_000_000_000),
    Operation("aten::nll_loss_forward", ((16, 1000),)): Work(1, 64_000),
    Operation(OPTIMIZER): Work(1, 700_000_000),
}
SECONDS = dict(zip(WORK, (0.3, 0.45, 0.002, 0.03), strict=True)) | {Operation(BETWEEN): 0.02}


def made_roofline() -> Roofline:
    """Return the roofline."""
    parts = operations(WORK, SECONDS, LIMITS)
    return Roofline(
        task="resnet50",
        date="2026-11-27",
        options={"amp_level": "O1", "batch_size": 16, "image_size": 224, "compiler_opt": True},
        environment={"cores": 2},
        limits=LIMITS,
        step_seconds=0.8,
        profiled_seconds=0.802,
        load=MachineLoad(0.0, 0.5),
        groups=groups(parts),
        operations=parts,
    )
