"""Dropout on the CPU: random numbers drawn by vector instructions, the same ones.

Inductor generates a scalar loop for random numbers: each element of a mask costs a whole block of
Philox, ten rounds for one number. In a transformer's step that is a sixth of the time. This graph
pass puts our operator in the place of `random > p`. It draws the same numbers, so that the mask
keeps every bit.

Left alone are numbers that are used otherwise, and other devices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor import config, inductor_prims
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from gallery_lib.kernels import dropout_mask

_aten, _prims = torch.ops.aten, torch.ops.prims


class DropoutMasks(CustomGraphPass):
    """Inductor's `post_grad_custom_post_pass` that draws masks by `gallery::dropout_mask`.

    `uuid` goes into the key of Inductor's cache.
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite `graph` in place."""
        for random in graph.find_nodes(
            op="call_function", target=inductor_prims.random, sort=False
        ):
            for mask, dtype in _comparisons(random):
                seeds, place = random.args[1].args
                threshold = float(torch.tensor(mask.args[1], dtype=dtype))
                arguments = (seeds, place, random.args[0], threshold)
                with graph.inserting_before(mask):
                    ours = graph.call_function(torch.ops.gallery.dropout_mask.default, arguments)
                ours.meta = dict(mask.meta)
                mask.replace_all_uses_with(ours)
                graph.erase_node(mask)

    def uuid(self) -> Any:
        """Return a hash of this file and of the operator's, so that it changes with them."""
        return get_hash_for_files((__file__, dropout_mask.__file__))


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
