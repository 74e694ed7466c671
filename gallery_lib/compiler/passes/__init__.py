"""Graph passes of ours that run inside Inductor, most of them for CPUs: one file each.

A file ends in the declaration of its pass: its name in `Compiler.without`, the place in Inductor,
the function that rewrites a graph, and where it is of use. `graph_pass` has what they share.
A new pass is added to `ORDER`.
"""

from __future__ import annotations

import torch

from gallery_lib.compiler.passes import (
    channels_last,
    dropout_masks,
    emulated_bf16,
    large_batch_norms,
    max_pooling,
    mixed_products,
    short_attention,
    small_convolutions,
    upsampling,
    vector_masks,
    winograd,
)
from gallery_lib.compiler.passes.graph_pass import Pass, Passes
from gallery_lib.config import Compiler
from gallery_lib.errors import InputError, did_you_mean

ORDER = (
    upsampling.PASS,
    max_pooling.PASS,
    large_batch_norms.PASS,
    short_attention.PASS,
    small_convolutions.PASS,
    winograd.PASS,
    channels_last.PASS,
    mixed_products.PASS,
    emulated_bf16.PASS,
    dropout_masks.PASS,
    vector_masks.PASS,
)
"""All passes, in the order in which those of a stage run."""


def choose(options: Compiler, device: torch.device, channels_last: bool) -> dict[str, Passes]:
    """Return Inductor's options with the passes of a model."""
    known = [one.option for one in ORDER if one.option]
    for name in options.without:
        if name not in known:
            raise InputError(
                f"without: unknown graph pass `{name}`.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}.",
                parameter="without",
            )
    chosen: dict[str, list[Pass]] = {"post_grad_custom_post_pass": []}  # for the cache's key
    for one in ORDER:
        if (
            device.type in one.devices
            and one.option not in options.without
            and (channels_last or not one.needs_channels_last)
            and one.reason_not_applied() is None
        ):
            chosen.setdefault(one.stage, []).append(one)
    return {stage: Passes(passes) for stage, passes in chosen.items()}
