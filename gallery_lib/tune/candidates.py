"""Candidates of the tuner: a memory layout, with a compiler backend or without one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler, Config
from gallery_lib.memory.layout import memory_format


@dataclass(frozen=True)
class Candidate:
    """A memory layout and a compiler backend for a model; the defaults are the baseline."""

    layout: str = "contiguous"
    backend: str | None = None

    @property
    def name(self) -> str:
        """Return the display name, such as `eager` or `inductor, channels_last`."""
        return (self.backend or "eager") + (
            f", {self.layout}" if self.layout != "contiguous" else ""
        )

    @property
    def memory_format(self) -> torch.memory_format:
        """Return the layout as a `torch.memory_format`."""
        return torch.channels_last if self.layout == "channels_last" else torch.contiguous_format

    def apply(self, model: nn.Module, options: Compiler, device: torch.device) -> None:
        """Lay out and compile `model` in place; compilation itself runs at its next call."""
        for parameter in [*model.parameters(), *model.buffers()]:
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=self.memory_format)
        if self.backend:
            compile_model(model, dataclasses.replace(options, backend=self.backend), device)


BASELINE = Candidate()


def candidates(model: nn.Module, config: Config, device: torch.device) -> list[Candidate]:
    """Return the baseline, then what `config` allows: its layout alone, and with its compiler.

    Candidates that coincide appear once.
    """
    layout = (
        "channels_last"
        if memory_format(model, config.memory, device.type) is torch.channels_last
        else "contiguous"
    )
    variants = [BASELINE, Candidate(layout)]
    if config.compiler.enabled:
        variants.append(Candidate(layout, config.compiler.backend))
    return list(dict.fromkeys(variants))
