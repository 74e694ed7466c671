"""Options that make each task small: SMALL for steps of a fraction of a second, LEARNING to learn.

With LEARNING a task learns something in seconds.
"""

from __future__ import annotations

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 4, "image_size": 64},
    "resnet18": {"batch_size": 8, "image_size": 64},
    "resnet50": {"batch_size": 4, "image_size": 64},
    "vgg16": {"batch_size": 2, "image_size": 32},
    "timm_vovnet": {"batch_size": 4, "image_size": 64},
    "timm_vision_transformer": {"batch_size": 4, "image_size": 64},
    "pytorch_unet": {"batch_size": 2, "image_size": 64},
    "hf_Bart": {"batch_size": 2, "sequence_length": 16},
    "hf_Bert": {"batch_size": 2, "sequence_length": 16},
    "speech_transformer": {"batch_size": 4, "sequence_length": 40},
    "tts_angular": {"batch_size": 8, "sequence_length": 16},
}

LEARNING: dict[str, dict[str, Any]] = {
    "alexnet": {"batch_size": 32, "image_size": 64, "max_steps": 40},
    "resnet18": {"batch_size": 32, "image_size": 64, "max_steps": 40},
    "resnet50": {"batch_size": 16, "image_size": 64, "max_steps": 30},
    "vgg16": {"batch_size": 8, "image_size": 32, "max_steps": 24},
    "timm_vovnet": {"batch_size": 16, "image_size": 64, "max_steps": 40},
    "timm_vision_transformer": {"batch_size": 32, "image_size": 64, "max_steps": 40},
    "pytorch_unet": {"batch_size": 2, "image_size": 64, "max_steps": 30},
    "hf_Bart": {"batch_size": 2, "sequence_length": 16, "max_steps": 10},
    "hf_Bert": {"batch_size": 2, "sequence_length": 16, "max_steps": 12},
    "speech_transformer": {"batch_size": 8, "sequence_length": 40, "max_steps": 50},
    "tts_angular": {"batch_size": 32, "sequence_length": 32, "max_steps": 30},
}

MOVES: dict[str, tuple[str, float]] = {
    "alexnet": ("top5", 0.4),
    "resnet18": ("top1", 0.2),
    "resnet50": ("top1", 0.12),
    "vgg16": ("top5", 0.2),
    "timm_vovnet": ("top1", 0.12),
    "timm_vision_transformer": ("top1", 0.12),
    "pytorch_unet": ("dice", 0.2),
    "hf_Bart": ("perplexity", -10_000.0),
    "hf_Bert": ("perplexity", -10_000.0),
    "speech_transformer": ("character_accuracy", 0.05),
    "tts_angular": ("eer", -0.1),
}
"""Held-out metric, and by how much training improves it at least (negative: lower is better)."""
