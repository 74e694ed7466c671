"""Dropout on the CPU: random numbers drawn by vector instructions, the same ones.

Inductor generates a scalar loop for random numbers: each element of a mask costs a whole block of
Philox, ten rounds for one number. In a transformer's step that is a sixth of the time. This graph
pass puts our operator in the place of `random > p`. It draws the same numbers, so that the mask
keeps every bit.

Left alone are numbers that are used otherwise, and other devices.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._inductor import config, inductor_prims

from gallery_lib.compiler.passes.graph_pass import Pass, replace
from gallery_lib.kernels import dropout_mask

_aten, _prims = torch.ops.aten, torch.ops.prims


def _comparisons(random: fx.Node) -> list[tuple[fx.Node, torch.dtype]]:
    """Return what compares the numbers with a constant, with the dtype of the comparison.

    Inductor leaves out the rounding of numbers to a 16-bit dtype, unless it emulates casts. It
    rounds the constant.
    """
    value, seed = random.meta["val"], random.args[1]
    aligned = any(option is not None for option in random.kwargs.values())
    if random.args[2:] != ("rand",) or aligned or value.device.type != "cpu":
        return []
    if not isinstance(seed, fx.Node) or seed.target is not inductor_prims.lookup_seed:
        return []
    masks = [(user, torch.float32) for user in random.users if _is_comparison(user)]
    for cast in random.users:
        if (
            cast.target is _prims.convert_element_type.default
            and not config.emulate_precision_casts
        ):
            dtype = cast.meta["val"].dtype
            masks += [(user, dtype) for user in cast.users if _is_comparison(user)]
    return masks


def _is_comparison(node: fx.Node) -> bool:
    return node.target is _aten.gt.Scalar and isinstance(node.args[1], (int, float))


def rewrite(graph: fx.Graph) -> None:
    """Put `gallery::dropout_mask` in the place of random numbers and their comparison."""
    for random in graph.find_nodes(op="call_function", target=inductor_prims.random, sort=False):
        for mask, dtype in _comparisons(random):
            seeds, place = random.args[1].args
            threshold = float(torch.tensor(mask.args[1], dtype=dtype))
            ours = torch.ops.gallery.dropout_mask.default
            replace(mask, ours, seeds, place, random.args[0], threshold)


def _reason() -> str | None:
    return None if dropout_mask.available() else "its C++ could not be built here"


PASS = Pass("vector_dropout", "post_grad_custom_post_pass", rewrite, reason_not_applied=_reason)
