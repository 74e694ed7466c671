"""VoVNet-39 on ImageNet-like images.

Lee et al., "An Energy and GPU-Computation Efficient Backbone Network for Real-Time Object
Detection", 2019; timm's `vovnet39a`. TorchBench's batch size. Its blocks run five 3×3 convolutions
in a row and concatenate what all of them found ("one-shot aggregation"). Large tensors are copied,
normalised and copied again, so layout and fusion decide.
"""

from __future__ import annotations

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.domains.classification import start_branches_small
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return VoVNet-39 for `classes` classes.

    Its chains of convolutions start small beside the input that they are concatenated with.
    """
    import timm
    from timm.models.vovnet import OsaBlock

    model = timm.create_model("vovnet39a", pretrained=False, num_classes=classes)
    blocks = [module for module in model.modules() if isinstance(module, OsaBlock)]
    start_branches_small(
        convolution.bn.weight for block in blocks for convolution in block.conv_mid
    )  # type: ignore[union-attr, misc]
    return model


TASK = classification.image_classifier(
    name="timm_vovnet",
    title="VoVNet-39",
    batch_size=32,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=1024),
    optimizer=OptimizerSpec(
        "SGD", lr=0.02, weight_decay=1e-4, arguments={"momentum": 0.9, "nesterov": True}
    ),
    parameters=22_600_296,
    activation_bytes_per_sample=84_500_000,
    # 7.07 G multiply-adds forward (convolutions and the last layer), twice that backward, 2
    # operations each
    flops_per_sample=42.4e9,
    quick=QUICK | {"batch_size": 16, "image_size": 64, "block_steps": 5},
    full=FULL | {"batch_size": 64, "image_size": 224},
)
