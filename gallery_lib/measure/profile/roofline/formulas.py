"""Bytes and floating-point operations of one call of an operator, from its shapes.

Bytes are compulsory traffic: every input is read once, every output written once. Caches may save
some of it, and an implementation may move more. FLOPs are those of products, convolutions,
attention and LSTM layers, with an addition and a multiplication counted as two; the element-wise
rest counts as none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.measure.comparison.work_per_step import MOVES_NOTHING

_WRITES_ALONE = ("copy_", "fill_", "zero_")
"""In-place operators that do not read what they overwrite."""
_READS_SOME = ("embedding", "index_select", "gather", "index", "_unsafe_index")
"""Operators that read as many elements of their first argument as they return."""
_CHANGES_SOME = ("index_put", "_index_put_impl", "index_add", "scatter")
"""Beginnings of operators that change in place as many elements as they are given values."""
_UNREAD = {"max_pool2d_with_indices_backward": ("self",)}
"""Arguments that give a shape alone."""
_ATTENTION_BACKWARD_PRODUCTS = 5  # of the forward pass: 2; the scores are computed anew


def arguments(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield each argument of the operator's schema with its value, None where it is left out."""
    for place, argument in enumerate(operator._schema.arguments):
        yield argument, args[place] if place < len(args) else kwargs.get(argument.name)


def tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of the tensor's elements in memory; expanded ones are there once."""
    distinct = math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride
    )
    return distinct * tensor.element_size() if tensor.numel() else 0


def moves_nothing(operator: Any) -> bool:
    """Return whether the operator only makes a view, or memory without values."""
    return bool(operator.is_view) or operator.overloadpacket.__name__.startswith(MOVES_NOTHING)


def call_bytes(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the bytes that a call has to read and write."""
    name = operator.overloadpacket.__name__
    named = {argument.name: value for argument, value in arguments(operator, args, kwargs)}
    if name.startswith(_CHANGES_SOME) and name.endswith("_"):
        values = named.get("values", named.get("src", named.get("source")))
        touched = tensor_bytes(values) if isinstance(values, Tensor) else 0
        indices = named.get("indices", named.get("index"))
        return 3 * touched + sum(map(tensor_bytes, tensors_in(indices)))
    unread = _unread(name, named)
    total = 0
    for place, (argument, value) in enumerate(arguments(operator, args, kwargs)):
        size = sum(map(tensor_bytes, tensors_in(value)))
        if argument.alias_info is not None and argument.alias_info.is_write:
            read = not argument.kwarg_only and name not in _WRITES_ALONE
            total += 2 * size if read else size
        elif place == 0 and name in _READS_SOME:
            total += sum(map(tensor_bytes, tensors_in(out)))
        elif argument.name not in unread:
            total += size
    returns = operator._schema.returns
    values = out if isinstance(out, tuple | list) and len(returns) > 1 else [out]
    for declared, value in zip(returns, values, strict=True):
        if declared.alias_info is None:
            total += sum(map(tensor_bytes, tensors_in(value)))
    return total


def _unread(name: str, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that the call does not read."""
    if name != "convolution_backward":
        return _UNREAD.get(name, ())
    of_input, of_weight, _ = named["output_mask"]
    return (() if of_input else ("weight",)) + (() if of_weight else ("input",))


_LEFT = {
    "mm": "self",
    "addmm": "mat1",
    "bmm": "self",
    "baddbmm": "batch1",
    "mixed_product": "left",
    "exact_products": "left",
}
"""Matrix products, and the argument that is the left side."""


def call_flops(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the floating-point operations of a call; 0 for operators without a formula."""
    name = operator.overloadpacket.__name__
    named = {argument.name: value for argument, value in arguments(operator, args, kwargs)}
    if name in _LEFT:
        left = named[_LEFT[name]]
        # out: [..., M, N]; left: [..., M, K]
        return 2 * int(out.numel()) * int(left.shape[-1])
    if name in ("convolution", "_convolution", "mkldnn_convolution"):
        inputs = named["self" if name == "mkldnn_convolution" else "input"]
        return _convolution(named, inputs, out)
    if name == "convolution_backward":
        once = _convolution(named, named["input"], named["grad_output"])
        return once * sum(map(bool, named["output_mask"][:2]))
    if name.startswith("_scaled_dot_product"):
        return _attention(named, backward=name.endswith("_backward"))
    if name in ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"):
        return _recurrent(named, backward=name.endswith("_backward"))
    return 0


def _convolution(named: Mapping[str, Any], inputs: Tensor, outputs: Tensor) -> int:
    """Return the FLOPs of a convolution; padding counts as if it were computed with."""
    positions = (inputs if named.get("transposed") else outputs).shape[2:]
    return 2 * int(inputs.shape[0]) * math.prod(positions) * int(named["weight"].numel())


def _attention(named: Mapping[str, Any], *, backward: bool) -> int:
    """Return the FLOPs of attention's products; a causal mask saves none."""
    query, key = named["query"], named["key"]  # [N, heads, positions, width]
    one = 2 * math.prod(query.shape[:-1]) * int(key.shape[-2]) * int(query.shape[-1])
    return one * (_ATTENTION_BACKWARD_PRODUCTS if backward else 2)


def _recurrent(named: Mapping[str, Any], *, backward: bool) -> int:
    """Return the FLOPs of an LSTM layer's products."""
    length, samples = named["input"].shape[:2]  # input: [length, N, width]
    first = "weight1" if backward else "weight0"
    second = "weight2" if backward else "weight1"
    weights = int(named[first].numel()) + int(named[second].numel())
    return 2 * int(length) * int(samples) * weights * (2 if backward else 1)
