"""Work of one training step, operator by operator: calls, bytes and FLOPs, from shapes.

A dispatch mode sees every operator that runs, those that compiled code calls as well. It does not
see kernels that the compiler generated, which Inductor's scheduler tells of, and the optimizer is
counted from its tensors: a fused one is no operator.

Bytes are compulsory traffic: every input is read once, every output written once. Caches may save
some of it, and an implementation may move more. FLOPs are those of products, convolutions,
attention and LSTM layers, with an addition and a multiplication counted as two; the element-wise
rest counts as none.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

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

    supports_higher_order_operators = True

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
        if not isinstance(
            operator, torch._ops.OpOverload
        ):  # of higher order, such as flex_attention
            return operator(*args, **kwargs)
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
            flops = _call_flops(operator, named, (args, kwargs), out)
            work.calls += 1
            work.bytes += _call_bytes(operator, name, named, out)
            work.flops += flops
            if flops:
                computed = next((t for t in tensors if t.is_floating_point()), tensors[0])
                work.dtype = str(computed.dtype).removeprefix("torch.")
        return out


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's step in one pass over memory.

    Gradients are read, weights and states are read and written.
    """
    total = 0
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        if weight.grad is not None:
            states = optimizer.state.get(weight, {}).values()
            changed = [s for s in states if isinstance(s, Tensor) and s.dim()]
            total += _tensor_bytes(weight.grad)
            total += 2 * sum(map(_tensor_bytes, [weight.detach(), *changed]))
    return total


# --------------------------------------------------------------------------------------------------
# Bytes and floating-point operations of one call of an operator


# Beginnings of the names of operators that move no data, beside views.
_MOVES_NOTHING = (
    *("empty", "new_empty", "_unsafe_view", "_reshape_alias", "alias", "detach", "lift_fresh"),
    "set_",
)
# In-place operators that do not read what they overwrite.
_OVERWRITES = ("copy_", "fill_", "zero_")
# Operators that read as many elements of their first argument as they return.
_GATHERS = ("embedding", "index_select", "gather", "index", "_unsafe_index")
# Beginnings of operators that change in place as many elements as they are given values.
_SCATTERS = ("index_put", "_index_put_impl", "index_add", "scatter")


def _bytes_in(value: Any) -> int:
    return sum(map(_tensor_bytes, tensors_in(value)))


def _tensor_bytes(tensor: Tensor) -> int:
    """Return the bytes of the tensor's elements in memory; expanded ones are there once."""
    if tensor.layout is not torch.strided:
        return tensor.numel() * tensor.element_size()
    distinct = math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride
    )
    return distinct * tensor.element_size() if tensor.numel() else 0


def _call_bytes(operator: Any, name: str, named: Mapping[str, Any], out: Any) -> int:
    """Return the bytes that a call has to move: inputs it reads plus outputs it writes."""
    if name.startswith(_SCATTERS) and name.endswith("_"):
        values = named.get("values", named.get("src", named.get("source")))
        value_bytes = _tensor_bytes(values) if isinstance(values, Tensor) else 0
        # Values are read; as many elements of the destination are read and written.
        return 3 * value_bytes + _bytes_in(named.get("indices", named.get("index")))
    not_read = _arguments_not_read(name, named)
    total = 0
    for position, argument in enumerate(operator._schema.arguments):
        size = _bytes_in(named[argument.name])
        if argument.alias_info is not None and argument.alias_info.is_write:
            # Tensors given as `out=` are keyword-only: written, but not read.
            is_read = not argument.kwarg_only and name not in _OVERWRITES
            total += 2 * size if is_read else size
        elif position == 0 and name in _GATHERS:
            total += _bytes_in(out)
        elif argument.name not in not_read:
            total += size
    returns = operator._schema.returns
    results = [out] if len(returns) == 1 else out or ()  # in-place foreach operators return None
    for declared, result in zip(returns, results, strict=True):
        if declared.alias_info is None:  # a result that is an argument was counted above
            total += _bytes_in(result)
    return total


def _arguments_not_read(name: str, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that the call does not read, but for their shapes."""
    if name == "max_pool2d_with_indices_backward":
        return ("self",)
    if name == "winograd_gradient":
        return ("weight",)
    if name != "convolution_backward":
        return ()
    of_input, of_weight, _ = named["output_mask"]
    return (() if of_input else ("weight",)) + (() if of_weight else ("input",))


def _call_flops(operator: Any, named: Mapping[str, Any], call: Any, out: Any) -> int:
    """Return the floating-point operations of a call; 0 for operators without a formula."""
    name = operator.overloadpacket.__name__
    if name in ("mixed_product", "exact_products"):
        return 2 * int(out.numel()) * int(named["left"].shape[-1])  # [..., M, N], [..., M, K]
    if name in ("winograd", "winograd_gradient"):  # 16 products where a convolution has 36
        return _convolution(named, named["image"], named["image"]) * 4 // 9
    if name == "mkldnn_convolution":
        return _convolution(named, named["self"], out)
    if name == "convolution_backward":  # torch's formula is another one with groups
        once = _convolution(named, named["input"], named["grad_output"])
        return once * sum(map(bool, named["output_mask"][:2]))
    if name in ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"):
        return _recurrent(named, backward=name.endswith("_backward"))
    formula = flop_registry.get(operator.overloadpacket)
    return int(formula(*call[0], **call[1], out_val=out)) if formula else 0


def _convolution(named: Mapping[str, Any], inputs: Tensor, outputs: Tensor) -> int:
    """Return the FLOPs of a convolution; padding counts as if it were computed with."""
    positions = (inputs if named.get("transposed") else outputs).shape[2:]
    return 2 * int(inputs.shape[0]) * math.prod(positions) * int(named["weight"].numel())


def _recurrent(named: Mapping[str, Any], *, backward: bool) -> int:
    """Return the FLOPs of an LSTM layer's products."""
    length, samples = named["input"].shape[:2]  # input: [length, N, width]
    first, second = ("weight1", "weight2") if backward else ("weight0", "weight1")
    weights = int(named[first].numel()) + int(named[second].numel())
    return 2 * int(length) * int(samples) * weights * (2 if backward else 1)


# --------------------------------------------------------------------------------------------------
# Kernels that Inductor generates for the CPU: bytes by its own estimate, and a name in profiles
#
# Inductor's scheduler knows which buffers a fused loop reads and writes. `recorded()` notes that at
# the moment a kernel's source is defined, and wraps the loaded kernel, so that each call is counted
# and has a name in torch's profiler. The C++ code stays as it is, and comes from the cache where it
# was compiled before. Lowering has to happen for that, so the caches of lowered graphs must be off.


PREFIX = "generated::"


class Kernels:
    """The generated kernels of a process: what a call of each does, and how often it was called."""

    def __init__(self) -> None:
        self.one_call: dict[str, Work] = {}
        self.calls: dict[str, int] = {}
        self._pending: dict[str, Work] = {}
        self._graphs = 0

    def work(self) -> dict[Operation, Work]:
        """Return the work of the calls since `calls` was cleared."""
        work = {}
        for name, calls in self.calls.items():
            one = self.one_call[name]
            dtype = one.dtype if one.flops else None
            work[Operation(name)] = Work(calls, calls * one.bytes, calls * one.flops, dtype)
        return work

    def defined(self, name: str, nodes: Sequence[Any]) -> None:
        """Note what a kernel does, whose source has just been generated from these nodes."""
        self._pending[name] = _work_of(nodes)

    def loaded(self, scope: dict[str, Any]) -> None:
        """Wrap the kernels among the names of a generated module."""
        self._graphs += 1
        for name, one in self._pending.items():
            if callable(scope.get(name)):
                label = f"{PREFIX}{name} (graph {self._graphs})"
                self.one_call[label] = one
                scope[name] = self._wrapped(label, scope[name])
        self._pending.clear()

    def _wrapped(self, label: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        from torch._C._profiler import _RecordFunctionFast

        def call(*args: Any) -> Any:
            self.calls[label] = self.calls.get(label, 0) + 1
            with _RecordFunctionFast(label):
                return kernel(*args)

        return call


def _work_of(nodes: Sequence[Any]) -> Work:
    """Return the work of one call of a kernel.

    A kernel consists of one or more fused loops. Each reads its inputs and writes its outputs once;
    what only the nodes of one loop use stays in registers.
    """
    from torch._inductor.virtualized import V

    wanted = {node.get_name() for node in nodes}
    work = Work(calls=1)
    for loop in V.graph.scheduler.nodes:
        inside = list(loop.get_nodes())
        if wanted.isdisjoint(node.get_name() for node in inside):
            continue
        work.bytes += int(loop.get_read_write_buffers_sizes())
        if templates := [node for node in inside if node.is_template()]:
            work.flops += int(loop.estimate_flops() or 0)
            ir_node: Any = templates[0].node
            work.dtype = str(ir_node.get_dtype()).removeprefix("torch.")
    return work


@contextlib.contextmanager
def recorded() -> Iterator[Kernels]:
    """Context: record the kernels that Inductor generates for the CPU."""
    from torch._inductor import async_compile
    from torch._inductor.codegen import cpp

    kernels = Kernels()
    scheduling: Any = cpp.CppScheduling
    compiling: Any = async_compile.AsyncCompile
    define, wait = scheduling.define_kernel, compiling.wait

    @functools.wraps(define)
    def define_kernel(self: Any, source: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        name = define(self, source, nodes, *args, **kwargs)
        kernels.defined(name, nodes)
        return name

    @functools.wraps(wait)
    def wait_and_wrap(self: Any, scope: dict[str, Any]) -> Any:
        done = wait(self, scope)
        kernels.loaded(scope)
        return done

    scheduling.define_kernel, compiling.wait = define_kernel, wait_and_wrap
    try:
        yield kernels
    finally:
        scheduling.define_kernel, compiling.wait = define, wait
