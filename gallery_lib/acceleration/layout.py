"""Bring a model to its device and into its memory layout, at once or with its first call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.config import Config
from gallery_lib.memory import layout_guard
from gallery_lib.memory.layout import memory_format


class Layout(NamedTuple):
    """Memory format that the model has from now on, or with `late` from its first call on."""

    memory_format: torch.memory_format
    late: bool = False

    @property
    def now(self) -> torch.memory_format:
        """Return the memory format that the model has before its first call."""
        return torch.contiguous_format if self.late else self.memory_format


def lay_out(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    config: Config,
    device: torch.device,
    record: dict[str, str],
) -> Layout:
    """Bring the model to the device and into its layout; return the layout."""
    layout = memory_format(model, config.memory, device.type)
    model.to(device)
    if layout is torch.contiguous_format:
        return Layout(layout)
    reason = layout_guard.reason_against(model)
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        reason = "LBFGS flattens gradients"
    if reason:
        record["layout"] = f"contiguous: {reason}"
        if process_group.rank() == 0:
            layout_guard.announce(model, reason)
        return Layout(torch.contiguous_format)
    record["layout"] = "channels_last"
    late = layout_guard.needs_strides(model)
    if not late:
        model.to(memory_format=layout)  # type: ignore[call-overload]
    return Layout(layout, late)
