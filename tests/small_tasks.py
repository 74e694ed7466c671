"""Options with which each task takes a fraction of a second a step, and with which it learns something in seconds."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"batch_size": 4, "image_size": 64},
}

LEARNING: dict[str, dict[str, Any]] = {
    "resnet50": {"batch_size": 16, "image_size": 64, "max_steps": 30},
}

MOVES: dict[str, tuple[str, float]] = {
    "resnet50": ("top1", 0.1),
}
"""The held-out metric, and by how much training makes it better at least (negative: lower is better)."""
