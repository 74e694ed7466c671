"""ResNet-18 on ImageNet-like images.

He et al., "Deep Residual Learning for Image Recognition", 2015; torchvision's form of it.
TorchBench's batch size. Its blocks are two 3×3 convolutions each, so more of its time is arithmetic
than in ResNet-50.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import start_branches_small
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return ResNet-18 for `classes` classes, whose residual branches start small."""
    from torchvision.models.resnet import BasicBlock, resnet18

    model = resnet18(num_classes=classes)
    start_branches_small(
        module.bn2.weight for module in model.modules() if isinstance(module, BasicBlock)
    )
    return model


TASK = classification.image_classifier(
    name="resnet18",
    title="ResNet-18",
    batch_size=16,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=512),
    optimizer=OptimizerSpec("AdamW", lr=1e-3, weight_decay=1e-2),
    parameters=11_689_512,
    activation_bytes_per_sample=25_400_000,
    # 1.81 G multiply-adds forward (convolutions and the last layer), twice that backward, 2
    # operations each
    flops_per_sample=10.9e9,
    quick=QUICK | {"batch_size": 32, "image_size": 64, "rounds": 8, "block_steps": 5},
    full=FULL | {"batch_size": 64, "image_size": 224},
)
