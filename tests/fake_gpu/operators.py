"""Operators of torch on the fake device: each is enqueued, and runs later with its CPU kernel.

`install()` replaces the CUDA kernel of every ATen operator. A call works out the shapes of its
results, gives them memory on the device, and enqueues the work on the current stream. When the
device comes to it, the CPU kernel runs on the same memory. So the values are right, and an
operator reads its inputs when its turn comes, not at the call: what has been overwritten by then is
overwritten, as on a device.

Operators whose shapes depend on values wait for the device, as they do on CUDA. Operators that
exist on CUDA alone have their mathematics in `MATHEMATICS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import torch
from fake_gpu import work
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only

_AS_THEY_ARE = frozenset(
    {
        "_cudnn_init_dropout_state", "_has_compatible_shallow_copy_type", "_local_scalar_dense",
        "_pin_memory", "_reshape_alias", "alias", "as_strided", "as_strided_", "detach", "empty",
        "empty_like", "empty_strided", "is_pinned", "is_set_to", "record_stream", "resize_",
        "set_", "squeeze_", "t_", "transpose_", "unfold", "unsqueeze_", "view", "view_as_complex",
        "view_as_real",
    }
)  # fmt: skip
"""Operators that start no kernel: memory, views, and the copy of one value to the host."""


COMPOSED = ("aten::convolution",)
"""Operators that choose among kernels of CUDA's libraries: they run as a whole."""

FOLLOW_CHANNELS_LAST = frozenset({"aten::convolution", "aten::convolution_backward"})
"""Operators whose results are in channels_last if one of their inputs is."""


def _lstm_cell(
    of_input: Tensor, of_state: Tensor, cx: Tensor, input_bias: Any = None, state_bias: Any = None
) -> tuple[Tensor, ...]:
    """Return the new output and state of an LSTM's cell, and its gates for the way back."""
    sums = of_input.float() + of_state.float()
    for bias in (input_bias, state_bias):
        sums = sums if bias is None else sums + bias.float()
    i, f, g, o = sums.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx.float() + i * g
    hy, gates = o * cy.tanh(), torch.cat([i, f, g, o], 1)
    return hy.to(cx.dtype), cy.to(cx.dtype), gates.to(of_input.dtype)


def _lstm_cell_backward(
    grad_hy: Any, grad_cy: Any, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Any, ...]:
    i, f, g, o = gates.float().chunk(4, 1)
    squashed = cy.float().tanh()
    of_hy = torch.zeros_like(squashed) if grad_hy is None else grad_hy.float()
    of_cy = of_hy * o * (1 - squashed**2) + (0 if grad_cy is None else grad_cy.float())
    of_gates = torch.cat(
        [
            of_cy * g * i * (1 - i),
            of_cy * cx.float() * f * (1 - f),
            of_cy * i * (1 - g**2),
            of_hy * squashed * o * (1 - o),
        ],
        1,
    )
    of_bias = of_gates.sum(0).to(gates.dtype) if has_bias else None
    return of_gates.to(gates.dtype), (of_cy * f).to(cx.dtype), of_bias


MATHEMATICS: dict[str, Callable[..., Any]] = {
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}


def _device_of(flat: list[Any]) -> torch.device:
    of_tensors = [each.device for each in flat if isinstance(each, Tensor) and each.is_cuda]
    named = [each for each in flat if isinstance(each, torch.device) and each.type == "cuda"]
    for device in (*of_tensors, *named):
        if device.index is not None:
            return device
    return torch.device("cuda", torch.cuda.current_device())


def _on(kind: str) -> Callable[[Any], Any]:
    """Return a function that moves an argument to `kind`, "cpu" or "meta"."""

    def moved(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_cuda:
            return work.alias(value) if kind == "cpu" else _like(value, "meta")
        if isinstance(value, Tensor) and kind == "meta" and value.device.type == "cpu":
            # a number in a tensor decides no shape; its value may decide a dtype
            return value if value.dim() == 0 else value.to("meta")
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device(kind)
        if isinstance(value, torch.Generator):
            return None
        return value

    return moved


def _drawn(flat: list[Any], device: torch.device) -> int:
    """Return a seed from the device's generator, and advance it, as a drawing kernel does."""
    given = [each for each in flat if isinstance(each, torch.Generator)]
    generator = given[0] if given else torch.cuda.default_generators[device.index or 0]
    if torch.cuda.is_current_stream_capturing():
        return next(_drawn_in_a_capture)
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    return (generator.initial_seed() * 1_000_003 + offset) % 2**63


@contextlib.contextmanager
def _seeded(seed: int | None) -> Any:
    if seed is None:
        yield
        return
    before = torch.random.get_rng_state()
    torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.random.set_rng_state(before)


def on_device(operator: Any, run: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return the implementation of `operator` for CUDA tensors; `run` does the work on the CPU."""
    with_number = _form_for_numbers(operator)
    name = f"{operator.namespace}::{operator}"
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    returns = [each.alias_info for each in operator._schema.returns]
    writes = any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in operator._schema.arguments
    )
    all_written = writes and all(each is not None for each in returns)

    is_out = any(argument.is_out for argument in operator._schema.arguments)
    takes_tensor = [str(argument.type) == "Tensor" for argument in operator._schema.arguments]

    def call(*arguments: Any, **options: Any) -> Any:
        form = operator
        if any(
            tensor and isinstance(value, int | float)
            for tensor, value in zip(takes_tensor, arguments, strict=False)
        ):
            form = with_number  # a number in the place of a tensor
        do = run or form
        flat, _ = tree_flatten((arguments, options))
        device = _device_of(flat)
        if is_out:
            _resize_targets(form, arguments, options)
        if all_written:
            results, into = _written_results(operator, arguments, options), []
        else:
            results = memory_for(form, arguments, options, device)
            if results is _UNKNOWN:
                return _at_once(do, arguments, options, device, flat if draws else None)
            into = tree_leaves(tree_map_only(Tensor, work.alias, results))
        given, named = tree_map(_on("cpu"), (arguments, options))
        seed = _drawn(flat, device) if draws else None

        def do_it() -> None:
            with _seeded(seed):
                values = tree_leaves(do(*given, **named))
            for target, value in zip(into, values if into else [], strict=True):
                # In evaluation the CPU's batch norm keeps no statistics, and CUDA's does.
                if isinstance(value, Tensor) and target is not None and value.numel():
                    target.copy_(value)

        work.enqueue(name, do_it, device)
        return results

    return call


def _form_for_numbers(operator: Any) -> Any:
    """Return the overload that takes a number where `operator` takes a tensor, else `operator`."""
    wanted = operator._overloadname.replace("Tensor", "Scalar")
    return getattr(operator.overloadpacket, wanted, operator)


_UNKNOWN = object()
_drawn_in_a_capture = itertools.count(1)
"""Seeds within a captured graph, where the generator may not be asked."""


def _shapes(operator: Any, arguments: Any, options: Any) -> Any:
    """Return the results on the device `meta`, or _UNKNOWN where values decide their shape."""
    given, named = tree_map(_on("meta"), (arguments, options))
    try:
        return operator(*given, **named)
    except (NotImplementedError, RuntimeError):
        return _UNKNOWN


def memory_for(operator: Any, arguments: Any, options: Any, device: torch.device) -> Any:
    """Return memory on the device for the results, or _UNKNOWN where values decide their shape."""
    shapes = _shapes(operator, arguments, options)
    if operator._schema.name in FOLLOW_CHANNELS_LAST:
        shapes = _laid_out_like(arguments, shapes)
    return tree_map(lambda each: _like(each, device), shapes)


def _resize_targets(operator: Any, arguments: Any, options: Any) -> None:
    """Give the tensors that results are written to the results' shapes, as torch does."""
    shapes = _shapes(operator, arguments, options)
    targets = _written_results(operator, arguments, options)
    if shapes is _UNKNOWN or targets is None:
        return
    for target, meta in zip(tree_flatten(targets)[0], tree_flatten(shapes)[0], strict=True):
        if target.size() != meta.size():
            target.resize_(meta.size())


def _laid_out_like(arguments: Any, shapes: Any) -> Any:
    """Return `shapes` in channels_last if one of the arguments is, as cuDNN's convolutions do."""

    def laid_out(image: Tensor) -> Tensor:
        return image.contiguous(memory_format=torch.channels_last) if image.dim() == 4 else image

    alike = _any_in_channels_last(arguments)
    return tree_map_only(Tensor, laid_out, shapes) if alike else shapes


def _any_in_channels_last(arguments: Any) -> bool:
    return any(
        each.dim() == 4
        and each.is_contiguous(memory_format=torch.channels_last)
        and not each.is_contiguous()
        for each in arguments
        if isinstance(each, Tensor)
    )


def _lay_out_traced_convolutions() -> None:
    """Give convolutions the layout where a compiler traces them that they have where they run."""
    own = torch._C._conv_determine_backend_memory_format

    def memory_format(*arguments: Any) -> torch.memory_format:
        return torch.channels_last if _any_in_channels_last(arguments) else own(*arguments)

    torch._C._conv_determine_backend_memory_format = memory_format


def _like(value: Any, device: torch.device | str) -> Any:
    """Return new memory on a device for a tensor, laid out as it is; other values as they are."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)


def _written_results(operator: Any, arguments: Any, options: Any) -> Any:
    """Return the arguments that the operator writes and returns; the schema has them in order."""
    written = [
        arguments[position] if position < len(arguments) else options[argument.name]
        for position, argument in enumerate(operator._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returned = len(operator._schema.returns)
    if returned == 0:
        return None
    return written[0] if returned == 1 else tuple(written[:returned])


def _at_once(run: Any, arguments: Any, options: Any, device: torch.device, flat: Any) -> Any:
    """Wait for the device, and do the work before the call returns."""
    work.wait(device)
    given, named = tree_map(_on("cpu"), (arguments, options))
    seed = _drawn(flat, device) if flat is not None else None
    with torch.no_grad(), _seeded(seed):
        values = run(*given, **named)

    def up(value: Tensor) -> Tensor:
        result = _like(value, device)
        if value.numel():
            work.alias(result).copy_(value)
        return result

    return tree_map_only(Tensor, up, values)


def _copy_(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy to, from or on a device, with CUDA's rules on who waits.

    Pageable memory of the host is read at the call. A copy to the host waits for the device, unless
    it is `non_blocking` and goes to pinned memory.
    """
    on_host = [each for each in (to, source) if not each.is_cuda]
    device = to.device if to.is_cuda else source.device
    kept = source
    if not source.is_cuda and not (non_blocking and source.is_pinned()):
        kept = source.clone()
    target, origin = (work.alias(each) if each.is_cuda else each for each in (to, kept))
    # A copy between devices: the stream of the source's device does it, after the target's.
    if to.is_cuda and source.is_cuda and to.device != source.device:
        torch.cuda.current_stream(source.device).wait_stream(torch.cuda.current_stream(to.device))
        work.enqueue("aten::copy_", lambda: target.copy_(origin), source.device)
        torch.cuda.current_stream(to.device).wait_stream(torch.cuda.current_stream(source.device))
        return to
    work.enqueue("aten::copy_", lambda: target.copy_(origin), device)
    if on_host and not (non_blocking and on_host[0].is_pinned()):
        work.wait(device)
    return to


_libraries: list[torch.library.Library] = []
"""What was registered; it lasts as long as the object."""


def install() -> None:
    """Let every ATen operator on CUDA tensors run on the fake device, in all threads."""
    work.begin()
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    # Attention is done in steps, which have CPU kernels.
    for enable in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{enable}_sdp")(False)
    # cuDNN asks the device for what is not there; without it torch takes its own operators.
    torch.backends.cudnn.enabled = False
    _lay_out_traced_convolutions()
    torch.cuda._sleep = lambda cycles: work.enqueue("sleep", lambda: None)
    for full_name in sorted(torch._C._dispatch_get_all_op_names()):
        name, _, overload = full_name.removeprefix("aten::").partition(".")
        if not full_name.startswith("aten::") or name in _AS_THEY_ARE:
            continue
        of_cuda = torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "CUDA")
        if not of_cuda and full_name not in COMPOSED:
            continue
        operator = getattr(getattr(torch.ops.aten, name), overload or "default")
        implementation = on_device(operator, MATHEMATICS.get(full_name))
        library.impl(operator, implementation, "CUDA", allow_override=True)
    library.impl("copy_", _copy_, "CUDA", allow_override=True)


# --------------------------------------------------------------------------------------------------
# The device without arithmetic: what a step asks of the host, and nothing else

_OF_LIBRARIES = (
    *("convolution", "convolution_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward"),
    *("mm", "bmm", "addmm", "baddbmm", "mm.out", "bmm.out", "addmm.out", "baddbmm.out"),
)


def _launched(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def launched(*arguments: Any, **options: Any) -> Any:
        device = torch.device("cuda", torch.cuda.current_device())
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        work.LIBRARY.fake_gpu_launched(ctypes.c_void_p(stream), name.encode())
        return options["out"] if overload else memory_for(operator, arguments, options, device)

    return launched


def install_without_arithmetic() -> None:
    """Let operators of cuDNN and cuBLAS give memory, and count as a launch each.

    torch's own kernels are launched and counted, so the host does what it does for a real device.
    Values are whatever the memory holds.
    """
    import torch._dynamo

    work.begin()
    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN asks the device for what is not there
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    for name in _OF_LIBRARIES:
        library.impl(name, torch._dynamo.disable(_launched(name)), "CUDA", allow_override=True)
