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
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from gallery_lib.compiler.passes.graph_pass import Pass, Writer, arguments_of
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

_aten, _prims = torch.ops.aten, torch.ops.prims
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
    write = _Writer(graph, node, in_bf16=in_bf16)
    heads = _Heads(write, arguments)
    if 0 in outputs:
        outputs[0].replace_all_uses_with(heads.back(heads.attended(), "query"))
    for backward_node in backward:
        write.before = backward_node
        gradients = heads.gradients(arguments_of(backward_node)["grad_out"])
        for user in list(backward_node.users):
            user.replace_all_uses_with(gradients[user.args[1]])  # type: ignore[index]
            graph.erase_node(user)
        graph.erase_node(backward_node)
    # torch takes the operator for one that may not be left out, so nothing else erases it.
    for dead in (*outputs.values(), node):
        graph.erase_node(dead)


class _Writer(Writer):
    def __init__(self, graph: fx.Graph, before: fx.Node, *, in_bf16: bool) -> None:
        super().__init__(graph, before)
        self.in_bf16 = in_bf16

    def size(self, tensor: fx.Node, place: int) -> Any:
        size = tensor.meta["val"].shape[place]
        return size if isinstance(size, int) else self(_aten.sym_size.int, tensor, place)

    def scalar(self, value: float) -> fx.Node:
        return self(_aten.full.default, [], value, dtype=torch.float32, device=torch.device("cpu"))

    def exact_product(self, left: fx.Node, right: fx.Node) -> fx.Node:
        values = [side.meta["val"] for side in (left, right)]
        sizes = (values[0].shape[1], values[1].shape[2])
        many = all(isinstance(size, int) for size in sizes) and math.prod(sizes) >= FEWEST_SCORES
        if self.in_bf16 and many and {value.dtype for value in values} == {torch.bfloat16}:
            return self(torch.ops.gallery.exact_products.default, left, right)
        in_fp32 = (self.cast(side, torch.float32) for side in (left, right))
        return self(_aten.bmm.default, *in_fp32)

    def transposed(self, matrices: fx.Node) -> fx.Node:
        return self(_aten.permute.default, matrices, [0, 2, 1])


class _Heads:
    """One attention, as a batch of matrices [samples × heads, tokens, width of a head].

    The batch holds the heads of all samples, and is called flat below.
    """

    def __init__(self, write: _Writer, arguments: Mapping[str, Any]) -> None:
        self.write, self.arguments = write, arguments
        flat = (self._flat(arguments[name]) for name in ("query", "key", "value"))
        self.query, self.key, self.value = flat
        self.dtype = arguments["query"].meta["val"].dtype
        self.scale = arguments["scale"]
        if self.scale is None:
            self.scale = 1.0 / math.sqrt(arguments["query"].meta["val"].shape[3])
        self.probabilities = self._probabilities()

    def _flat(self, tensor: fx.Node) -> fx.Node:
        """Return [samples, heads, tokens, width] as a flat batch."""
        sizes = [-1, self.write.size(tensor, 2), self.write.size(tensor, 3)]
        return self.write(_aten.reshape.default, tensor, sizes)

    def back(self, flat: fx.Node, name: str) -> fx.Node:
        """Return a flat batch with the sizes of argument `name`, except for the width.

        The memory is laid out as the fused operator leaves it: token by token.
        """
        write, like = self.write, self.arguments[name]
        sizes = [*(write.size(like, place) for place in range(3)), write.size(flat, 2)]
        by_head = write(_aten.reshape.default, flat, sizes)
        by_token = write(_aten.permute.default, by_head, [0, 2, 1, 3])
        copied = write(_aten.clone.default, by_token, memory_format=torch.contiguous_format)
        return write(_aten.permute.default, copied, [0, 2, 1, 3])

    def _probabilities(self) -> fx.Node:
        """Return the probabilities in the inputs' dtype.

        A query that may not attend to any key has zeros.
        """
        write = self.write
        products = write.exact_product(self.query, write.transposed(self.key))
        scores = write(_aten.mul.Tensor, products, self.scale)
        masked = self._masked(scores)
        highest = write(_aten.amax.default, masked, [-1], True)
        if masked is not scores:
            highest = self._where_equal(highest, -math.inf, 0.0)
        powers = write(_aten.exp.default, write(_aten.sub.Tensor, masked, highest))
        total = write(_aten.sum.dim_IntList, powers, [-1], True)
        if masked is not scores:
            total = self._where_equal(total, 0.0, 1.0)
        return write.cast(write(_aten.div.Tensor, powers, total), self.dtype)

    def _where_equal(self, tensor: fx.Node, value: float, instead: float) -> fx.Node:
        equal = self.write(_aten.eq.Scalar, tensor, value)
        return self.write(_aten.where.self, equal, self.write.scalar(instead), tensor)

    def _masked(self, scores: fx.Node) -> fx.Node:
        write, mask = self.write, self.arguments["attn_mask"]
        queries, keys = write.size(self.query, 1), write.size(self.key, 1)
        if mask is not None:
            samples, heads = (write.size(self.arguments["query"], place) for place in (0, 1))
            by_head = write(_aten.reshape.default, scores, [samples, heads, queries, keys])
            sums = write(_aten.add.Tensor, by_head, write.cast(mask, torch.float32))
            scores = write(_aten.reshape.default, sums, [-1, queries, keys])
        if self.arguments["is_causal"]:
            rows, columns = (self._count(size) for size in (queries, keys))
            allowed = write(_aten.le.Tensor, columns, write(_aten.unsqueeze.default, rows, 1))
            scores = write(_aten.where.self, allowed, scores, write.scalar(-math.inf))
        return scores

    def _count(self, size: Any) -> fx.Node:
        """Return the numbers 0, 1, 2, … below `size`."""
        options = {"dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}
        return self.write(_prims.iota.default, size, start=0, step=1, **options)

    def attended(self) -> fx.Node:
        """Return the output of attention as a flat batch."""
        return self.write(_aten.bmm.default, self.probabilities, self.value)

    def gradients(self, grad_out: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node]:
        """Return the gradients of queries, keys and values, with their sizes."""
        write = self.write
        grad = self._flat(grad_out)
        probabilities = write.cast(self.probabilities, torch.float32)
        of_probabilities = write.exact_product(grad, write.transposed(self.value))
        products = write(_aten.mul.Tensor, probabilities, of_probabilities)
        mean = write(_aten.sum.dim_IntList, products, [-1], True)
        centred = write(_aten.sub.Tensor, of_probabilities, mean)
        of_scores = write(_aten.mul.Tensor, probabilities, centred)
        rounded = write.cast(write(_aten.mul.Tensor, of_scores, self.scale), self.dtype)
        by_key = write.transposed(self.probabilities)
        return (
            self.back(write(_aten.bmm.default, rounded, self.key), "query"),
            self.back(write(_aten.bmm.default, write.transposed(rounded), self.query), "key"),
            self.back(write(_aten.bmm.default, by_key, write.cast(grad, self.dtype)), "value"),
        )


PASS = Pass("short_attention", "joint_custom_pre_pass", rewrite)
