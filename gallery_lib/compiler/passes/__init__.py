"""Graph passes of ours that run inside Inductor, most of them for CPUs: one file each.

A file ends in the declaration of its pass: the switch in `config.Compiler`, the place in Inductor,
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
)
from gallery_lib.compiler.passes.graph_pass import Pass, Passes
from gallery_lib.config import Compiler

ORDER = (
    upsampling.PASS,
    max_pooling.PASS,
    large_batch_norms.OF_EVERY_SIZE,
    large_batch_norms.PASS,
    short_attention.PASS,
    small_convolutions.PASS,
    channels_last.PASS,
    mixed_products.PASS,
    large_batch_norms.TWO_GRADIENTS,
    emulated_bf16.PASS,
    dropout_masks.PASS,
    vector_masks.PASS,
)
"""All passes, in the order in which those of a stage run."""


def choose(
    options: Compiler, device: torch.device, channels_last: bool
) -> tuple[dict[str, Passes], list[str]]:
    """Return Inductor's options with the passes of a model, and notes on them for the results.

    A pass that is off by default was asked for, so a note says why it is not used.
    """
    chosen: dict[str, list[Pass]] = {"post_grad_custom_post_pass": []}  # for the cache's key
    notes = []
    for one in ORDER:
        if device.type not in one.devices or not getattr(options, one.option, not one.option):
            continue
        reason = (
            "the model is not in channels_last"
            if one.needs_channels_last and not channels_last
            else one.reason_not_applied(device)
        )
        if reason is None:
            chosen.setdefault(one.stage, []).append(one)
        if reason is None and one.note:
            notes.append(one.note)
        elif reason is not None and not getattr(Compiler, one.option, True):
            notes.append(f"{one.note} not used: {reason}")
    return {stage: Passes(passes) for stage, passes in chosen.items()}, notes
