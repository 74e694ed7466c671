"""ResNet-50 on ImageNet-like images.

He et al., "Deep Residual Learning for Image Recognition", 2015; torchvision's v1.5 variant (stride in the 3×3
convolution). TorchBench's batch size. Its convolutions are interleaved with batch norms that are bound by memory,
so layout and fusion decide.
"""

from __future__ import annotations

import torchvision
from torch import nn
from torchvision.models.resnet import Bottleneck

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks import classification
from gallery_lib.tasks.task import Task


def _condition(model: nn.Module) -> None:
    """Damp each block's residual branch (Goyal et al., 2017, start it at zero).

    With torchvision's own start every branch is as large as its trunk, rounding errors double from block to block,
    and bfloat16 gradients have hardly anything to do with the exact ones: nothing could be told from them.
    """
    for module in model.modules():
        if isinstance(module, Bottleneck):
            module.bn3.weight.data.mul_(0.1)


TASK = Task(
    name="resnet50",
    title="ResNet-50",
    domain="computer vision",
    batch_size=32,
    image_size=224,
    build_model=lambda: torchvision.models.resnet50(num_classes=1000),
    data=classification.images,
    loss=classification.loss,
    metrics=classification.metrics,
    chance=classification.chance,
    optimizer=OptimizerSpec("AdamW", lr=1e-3, weight_decay=1e-2),
    flops_per_sample=24.5e9,
    quick={"batch_size": 16, "image_size": 64, "warmup_steps": 3},
    full={"batch_size": 128, "image_size": 224, "warmup_steps": 10, "amp_level": "O1"},
    condition=_condition,
)
