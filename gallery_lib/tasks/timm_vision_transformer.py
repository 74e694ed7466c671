"""Vision transformer ViT-S/16 on ImageNet-like images.

Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020, in the small size of Touvron et al.,
"Training data-efficient image transformers", 2020; timm's `vit_small_patch16_224`. The batch size
is 32 where TorchBench has 8: at 8 its step time varied by 17 % from run to run. Nearly all of the
time is matrix products that run at the machine's rate already.
"""

from __future__ import annotations

import functools

from torch import nn

from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.task import FULL, QUICK


def build_model(classes: int = 1000) -> nn.Module:
    """Return ViT-S/16 for `classes` classes.

    For images of another size than 224² the position embeddings are resampled in each step; the
    parameters stay the same.
    """
    import timm

    return timm.create_model(
        "vit_small_patch16_224", pretrained=False, num_classes=classes, dynamic_img_size=True
    )


TASK = classification.image_classifier(
    name="timm_vision_transformer",
    title="Vision transformer ViT-S/16",
    batch_size=32,
    image_size=224,
    build_model=build_model,
    head=classification.head(features=384),
    data=functools.partial(classification.images, multiple_of=16),  # the side of a patch
    optimizer=OptimizerSpec("AdamW", lr=3e-4, weight_decay=5e-2),
    parameters=22_050_664,
    activation_bytes_per_sample=60_600_000,
    # 4.60 G multiply-adds forward (products with weights, and attention), twice that backward, 2
    # operations each
    flops_per_sample=27.6e9,
    quick=QUICK | {"batch_size": 32, "image_size": 64},
    full=FULL | {"batch_size": 64, "image_size": 224},
)
