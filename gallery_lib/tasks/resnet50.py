"""ResNet-50 on ImageNet-like images.

He et al., "Deep Residual Learning for Image Recognition", 2015; torchvision's v1.5 variant (stride
in the 3×3 convolution). TorchBench's batch size. Its convolutions are interleaved with memory-bound
batch norms, so layout and fusion decide.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import start_branches_small
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return ResNet-50 for `classes` classes, whose residual branches start small."""
    from torchvision.models.resnet import Bottleneck, resnet50

    model = resnet50(num_classes=classes)
    start_branches_small(
        module.bn3.weight for module in model.modules() if isinstance(module, Bottleneck)
    )
    return model


TASK = classification.image_classifier(
    name="resnet50",
    title="ResNet-50",
    batch_size=32,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=2048),
    optimizer=OptimizerSpec("AdamW", lr=1e-3, weight_decay=1e-2),
    parameters=25_557_032,
    activation_bytes_per_sample=89_200_000,
    flops_per_sample=24.5e9,
    quick=QUICK | {"batch_size": 16, "image_size": 64, "rounds": 8},
    full=FULL | {"batch_size": 128, "image_size": 224},
)
