"""Attention over short sequences on the CPU: batched products in place of torch's fused operator.

torch computes attention there block by block, so that the scores of long sequences never lie in
memory at once (Dao et al., 2022). For short sequences that costs more than it saves. Each head's
products are calls of their own, in the backward pass above all, and their set-up takes longer than
they do. This graph pass writes forward and backward as batched products. The compiler fuses what is
left between them.

Rounding is that of the fused operator. Scores, softmax and the gradient of the probabilities are in
fp32. The probabilities and the gradient of the scores are rounded to the inputs' dtype for their
products. Where torch would copy bfloat16 operands to fp32 for scores in fp32, an operator of ours
multiplies them as they are (`gallery::exact_products`).

Beyond `LONGEST` the fused operator stays. Its memory grows with the sequence, while that of the
probabilities grows with the square. In bfloat16 it may be twice as long where the probabilities
that are kept are small (`MOST_KEPT`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gallery_lib.compiler.passes.graph_pass import Pass, arguments_of, write
from gallery_lib.kernels import mixed_product
from gallery_lib.system import hardware

LONGEST = {torch.bfloat16: 256, torch.float32: 128}
"""Tokens up to which products are used: the geometric mean of queries and keys. In bfloat16
products are faster beyond that, too, and take more memory. In fp32 they are not
(benchmarks/notes/short-attention.md)."""

MOST_KEPT = 16 << 20
"""Probabilities that an attention keeps, at most, where a sequence is longer than `LONGEST`."""
FEWEST_SCORES = 64 * 64
"""Scores of a head from which our operator gains over torch's, whose calls take less time."""

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def multiplies_in_bf16() -> bool:
    """Return whether our operator multiplies bfloat16 without rounding on this processor.

    torch's fp32 products were not compared with it where there is AMX.
    """
    has_amx = "amx_bf16" in hardware.cpu_flags()
    return not has_amx and mixed_product.reason_not_available() is None


def rewrite(graph: fx.Graph) -> None:
    """Write short attention as products."""
    in_bf16 = multiplies_in_bf16()
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is _FORWARD:
            _rewrite(graph, node, in_bf16=in_bf16)


def _is_short(arguments: Mapping[str, Any], *, in_bf16: bool) -> bool:
    tensors = [arguments[name].meta["val"] for name in ("query", "key", "value")]
    query, key, _ = tensors
    if (
        arguments["dropout_p"]
        or query.dtype not in LONGEST
        or any(tensor.dtype is not query.dtype for tensor in tensors)
        or any(tensor.dim() != 4 or not isinstance(tensor.shape[3], int) for tensor in tensors)
        or not all(  # else heads share keys
            statically_known_true(query.shape[place] == tensor.shape[place])
            for tensor in tensors
            for place in (0, 1)
        )
    ):
        return False
    scores = _size_hint(query.shape[2]) * _size_hint(key.shape[2])
    if scores <= LONGEST[query.dtype] ** 2:
        return True
    kept = _size_hint(query.shape[0]) * _size_hint(query.shape[1]) * scores
    twice = scores <= (2 * LONGEST[query.dtype]) ** 2
    return in_bf16 and query.dtype is torch.bfloat16 and twice and kept <= MOST_KEPT


def _size_hint(size: int | torch.SymInt) -> float:
    """Return a size, or the value that a changing size had when it was compiled.

    The result decides about speed only. It is infinite where no value is known.
    """
    if isinstance(size, int):
        return size
    return math.inf if size.node.hint is None else int(size.node.hint)


def _rewrite(graph: fx.Graph, node: fx.Node, *, in_bf16: bool) -> None:
    """Rewrite the fused operator and its counterpart in the backward pass.

    Both stay if anything else uses the outputs that only they understand.
    """
    arguments = arguments_of(node)
    if not _is_short(arguments, in_bf16=in_bf16):
        return
    if any(user.target is not operator.getitem for user in node.users):
        return
    outputs = {user.args[1]: user for user in node.users}
    backward = list(outputs[1].users) if 1 in outputs else []
    if any(user.target is not _BACKWARD for user in backward) or len(outputs) < len(node.users):
        return
    tensors = [arguments[name] for name in ("query", "key", "value")]
    scale = arguments["scale"]
    if scale is None:
        scale = 1.0 / math.sqrt(tensors[0].meta["val"].shape[3])
    options = (arguments["attn_mask"], arguments["is_causal"], scale, in_bf16)
    result, probabilities = write(node, _attended, *tensors, *options)
    if 0 in outputs:
        outputs[0].replace_all_uses_with(result)
    for back in backward:
        of_result = arguments_of(back)["grad_out"]
        gradients = write(back, _gradients, probabilities, *tensors, of_result, scale, in_bf16)
        for user in list(back.users):
            user.replace_all_uses_with(gradients[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(back)
    # torch takes the operator for one that may not be left out, so nothing else erases it.
    for dead in (*outputs.values(), node):
        graph.erase_node(dead)


# --------------------------------------------------------------------------------------------------
# Attention in plain torch, on a batch of matrices: [samples × heads, tokens, width of a head].


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    in_bf16: bool,
) -> tuple[Tensor, Tensor]:
    """Return the output of attention, and the probabilities in the inputs' dtype.

    A query that may not attend to any key has zeros.
    """
    scores = _exact_product(_flat(query), _flat(key).mT, in_bf16) * scale
    if mask is not None:
        by_head = scores.view(*query.shape[:3], key.shape[2])
        scores = (by_head + mask.float()).view(scores.shape)
    if causal:
        rows, columns = (torch.arange(size) for size in scores.shape[1:])
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
    highest = scores.amax(-1, keepdim=True)
    if causal or mask is not None:
        highest = highest.masked_fill(highest == -math.inf, 0.0)
    powers = (scores - highest).exp()
    total = powers.sum(-1, keepdim=True)
    if causal or mask is not None:
        total = total.masked_fill(total == 0.0, 1.0)
    probabilities = (powers / total).to(query.dtype)
    return _by_token(probabilities.bmm(_flat(value)), query), probabilities


def _gradients(
    probabilities: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    of_result: Tensor,
    scale: float,
    in_bf16: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, with their sizes."""
    of_result = _flat(of_result)
    wide = probabilities.float()
    of_probabilities = _exact_product(of_result, _flat(value).mT, in_bf16)
    centred = of_probabilities - (wide * of_probabilities).sum(-1, keepdim=True)
    of_scores = (wide * centred * scale).to(query.dtype)
    return (
        _by_token(of_scores.bmm(_flat(key)), query),
        _by_token(of_scores.mT.bmm(_flat(query)), key),
        _by_token(probabilities.mT.bmm(of_result.to(query.dtype)), value),
    )


def _flat(tensor: Tensor) -> Tensor:
    """Return [samples, heads, tokens, width] as a batch of matrices."""
    return tensor.reshape(-1, *tensor.shape[2:])


def _by_token(flat: Tensor, like: Tensor) -> Tensor:
    """Return a batch of matrices as [samples, heads, tokens, width], in memory token by token.

    The fused operator leaves it so.
    """
    by_token = flat.view(*like.shape[:3], -1).transpose(1, 2)
    return by_token.clone(memory_format=torch.contiguous_format).transpose(1, 2)


def _exact_product(left: Tensor, right: Tensor, in_bf16: bool) -> Tensor:
    sizes = (left.shape[1], right.shape[2])
    many = all(isinstance(size, int) for size in sizes) and math.prod(sizes) >= FEWEST_SCORES
    if in_bf16 and many and left.dtype is right.dtype is torch.bfloat16:
        return torch.ops.gallery.exact_products.default(left, right)  # type: ignore[no-any-return]
    return left.float().bmm(right.float())


PASS = Pass("short_attention", "joint_custom_pre_pass", rewrite)
