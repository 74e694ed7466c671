"""The tasks that classify images, and the number of classes in their test data."""

from __future__ import annotations

NAMES = ("alexnet", "resnet18", "resnet50", "timm_vision_transformer", "timm_vovnet", "vgg16")
CLASSES = 3
