"""Work of one training step, operator by operator: calls, bytes and FLOPs, from shapes.

A dispatch mode sees every operator that runs, those that compiled code calls as well. It does not
see kernels that the compiler generated (`generated`), and the optimizer is counted from its
tensors: a fused one is no operator.

Bytes are compulsory traffic: every input is read once, every output written once. Caches may save
some of it, and an implementation may move more. FLOPs are those of products, convolutions,
attention and LSTM layers, with an addition and a multiplication counted as two; the element-wise
rest counts as none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gallery_lib.data.loading.nesting import tensors_in


class Operation(NamedTuple):
    """An operator with the shapes of its tensors: what is counted and timed as one."""

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()


@dataclass
class Work:
    """Work of all calls of an operation in a step."""

    calls: int = 0
    bytes: int = 0
    flops: int = 0
    dtype: str | None = None  # that the FLOPs are done in


class Counts(TorchDispatchMode):
    """Dispatch mode that counts in `work` what the operators inside it do."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[Operation, Work] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run under this mode as it is."""
        return True

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count it."""
        kwargs = kwargs or {}
        named = {
            argument.name: args[place] if place < len(args) else kwargs.get(argument.name)
            for place, argument in enumerate(operator._schema.arguments)
        }
        # In-place operators may change strides, so shapes are read first.
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        shapes = tuple(tuple(tensor.shape) for tensor in tensors if tensor.dim())
        out = operator(*args, **kwargs)
        name = operator.overloadpacket.__name__
        if not operator.is_view and not name.startswith(_MOVES_NOTHING):
            work = self.work.setdefault(Operation(operator._schema.name, shapes), Work())
            flops = _call_flops(name, named, out)
            work.calls += 1
            work.bytes += _call_bytes(operator, name, named, out)
            work.flops += flops
            if flops:
                floating = next(tensor for tensor in tensors if tensor.is_floating_point())
                work.dtype = str(floating.dtype).removeprefix("torch.")
        return out


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's step in one pass over memory.

    Gradients are read, weights and states are read and written. An optimizer that goes over them
    more often moves more.
    """
    total = 0
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is None:
                continue
            total += _tensor_bytes(weight.grad)
            states = [
                value
                for value in optimizer.state.get(weight, {}).values()
                if isinstance(value, Tensor) and value.dim()
            ]
            total += 2 * sum(map(_tensor_bytes, [weight.detach(), *states]))
    return total


# --------------------------------------------------------------------------------------------------
# Bytes and floating-point operations of one call of an operator


_MOVES_NOTHING = (
    *("empty", "new_empty", "_unsafe_view", "_reshape_alias", "alias", "detach", "lift_fresh"),
    "set_",
)
"""Beginnings of the names of operators that move no data, beside views."""
_WRITES_ALONE = ("copy_", "fill_", "zero_")
"""In-place operators that do not read what they overwrite."""
_READS_SOME = ("embedding", "index_select", "gather", "index", "_unsafe_index")
"""Operators that read as many elements of their first argument as they return."""
_CHANGES_SOME = ("index_put", "_index_put_impl", "index_add", "scatter")
"""Beginnings of operators that change in place as many elements as they are given values."""
_UNREAD = {"max_pool2d_with_indices_backward": ("self",)}
"""Arguments that give a shape alone."""
_ATTENTION_BACKWARD_PRODUCTS = 5  # of the forward pass: 2; the scores are computed anew


def _bytes_in(value: Any) -> int:
    return sum(map(_tensor_bytes, tensors_in(value)))


def _tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of the tensor's elements in memory; expanded ones are there once."""
    distinct = math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride
    )
    return distinct * tensor.element_size() if tensor.numel() else 0


def _call_bytes(operator: Any, name: str, named: Mapping[str, Any], out: Any) -> int:
    """Return the bytes that a call has to read and write."""
    if name.startswith(_CHANGES_SOME) and name.endswith("_"):
        values = named.get("values", named.get("src", named.get("source")))
        touched = _tensor_bytes(values) if isinstance(values, Tensor) else 0
        return 3 * touched + _bytes_in(named.get("indices", named.get("index")))
    unread = _unread(name, named)
    total = 0
    for place, argument in enumerate(operator._schema.arguments):
        size = _bytes_in(named[argument.name])
        if argument.alias_info is not None and argument.alias_info.is_write:
            read = not argument.kwarg_only and name not in _WRITES_ALONE
            total += 2 * size if read else size
        elif place == 0 and name in _READS_SOME:
            total += _bytes_in(out)
        elif argument.name not in unread:
            total += size
    returns = operator._schema.returns
    results = [out] if len(returns) == 1 else out or ()  # in-place ones of lists return nothing
    for declared, result in zip(returns, results, strict=True):
        if declared.alias_info is None:
            total += _bytes_in(result)
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


def _call_flops(name: str, named: Mapping[str, Any], out: Any) -> int:
    """Return the floating-point operations of a call; 0 for operators without a formula."""
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
