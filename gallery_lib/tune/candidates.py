"""Candidates of the tuner: a memory layout, with a compiler backend or without one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import nn

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler, Config
from gallery_lib.memory.layout import convert_images, memory_format


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

    def apply(self, model: nn.Module, options: Compiler, device: torch.device) -> None:
        """Lay out and compile `model` in place; compilation itself runs at its next call."""
        channels_last = self.layout == "channels_last"
        if self.backend:
            options = dataclasses.replace(options, backend=self.backend)
            compile_model(model, options, device, channels_last=channels_last)
        elif channels_last:
            convert_images(model)


BASELINE = Candidate()


def candidates(model: nn.Module, config: Config, device: torch.device) -> list[Candidate]:
    """Return the baseline, then what `config` allows: its layout alone, and with its compiler.

    A layout is a candidate of its own where it is asked for by name. Candidates that coincide
    appear once.
    """
    layout = (
        "channels_last"
        if memory_format(model, config.memory, device.type) is torch.channels_last
        else "contiguous"
    )
    variants = [BASELINE]
    if config.memory.layout != "auto":
        variants.append(Candidate(layout))
    if config.compiler.enabled:
        variants.append(Candidate(layout, config.compiler.backend))
    return list(dict.fromkeys(variants))
