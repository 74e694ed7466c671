"""Guard of channels_last: a model whose code needs contiguous tensors becomes contiguous again.

In channels_last a convolution's output has other strides than in plain PyTorch. `x.view(n, -1)` on
it raises, and `x.as_strided(…)` reads other values. Three things keep the training the user's:

- `reason_against(model)` looks at the model's code and memory before anything is changed. It names
  what would silently compute something else.
- `LayoutGuard` takes over the model's calls. If one fails for reasons of strides, the guard
  restores buffers and random states, makes the model contiguous, says so in one line, and calls it
  again.
- What the model returns is contiguous, as in plain PyTorch, so that a loss may use `.view` on it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, MutableMapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.comm import process_group
from gallery_lib.console.outlets import note
from gallery_lib.data.loading.nesting import map_tensors

_READS_MEMORY = {"as_strided", "as_strided_", "untyped_storage", "data_ptr"}
"""Methods whose result depends on where values lie, and that raise nothing."""
_NEEDS_STRIDES = {"view", "view_as", "unflatten", "view_as_complex"}
"""Methods that raise for some strides."""
_STRIDES_TO_BLAME = re.compile(r"stride|contiguous|cannot view|memory.format", re.IGNORECASE)
_FIELDS_OWN = ("torch", "torchvision", "timm", "transformers", "builtins")
"""Packages whose functions are not inspected: their forward passes are known to take any layout."""
_DEPTH = 4


def reason_against(model: nn.Module) -> str:
    """Return why `model` has to stay contiguous, in a few words.

    Returns '' where nothing speaks against channels_last.
    """
    if any(nn.parameter.is_lazy(tensor) for tensor in model.parameters()):
        return (
            "it has lazy parameters without shapes (call it once on a batch before accelerate() to "
            "have channels_last)"
        )
    tensors = [*model.parameters(), *model.buffers()]
    where: dict[int, Tensor] = {}
    for tensor in {
        id(tensor): tensor for tensor in tensors if tensor.layout is torch.strided
    }.values():
        other = (
            where.setdefault(tensor.untyped_storage().data_ptr(), tensor)
            if tensor.numel()
            else tensor
        )
        if other is not tensor and 4 in (other.dim(), tensor.dim()):
            return "two of its parameters or buffers share memory"
    for function in _functions(model):
        if calls := _names(function.__code__) & _READS_MEMORY:
            return (
                f"{function.__qualname__} calls {sorted(calls)[0]}, which depends on where values "
                "lie"
            )
        if function.__name__ == "backward" and (
            calls := _names(function.__code__) & _NEEDS_STRIDES
        ):
            return f"{function.__qualname__} calls {sorted(calls)[0]} on gradients"
    return ""


def needs_strides(model: nn.Module) -> bool:
    """Return whether the model's own code calls methods that raise for some strides.

    Such a model changes layout with its first call, not before. A copy made before that call, for
    averaged weights say, then works as in plain PyTorch.
    """
    return any(_names(function.__code__) & _NEEDS_STRIDES for function in _functions(model))


def _functions(model: nn.Module) -> Iterator[FunctionType]:
    """Yield the functions that a call of `model` may reach, as far as their names tell.

    Functions of libraries are left out.
    """
    seen: set[Any] = set()
    waiting: list[tuple[Any, int]] = [(type(module), 0) for module in model.modules()]
    while waiting:
        thing, depth = waiting.pop()
        if (
            thing in seen
            or depth > _DEPTH
            or str(getattr(thing, "__module__", "")).split(".")[0] in _FIELDS_OWN
        ):
            continue
        seen.add(thing)
        if inspect.isclass(thing):
            for member in vars(thing).values():
                inner = getattr(member, "__func__", member)
                if inspect.isfunction(inner) and inner.__name__ != "__init__":
                    waiting.append((inner, depth + 1))
            waiting += [(base, depth) for base in thing.__bases__ if base is not object]
        elif inspect.isfunction(thing):
            yield thing
            for name in _names(thing.__code__):
                known = thing.__globals__.get(name)
                if inspect.isfunction(known) or inspect.isclass(known):
                    waiting.append((known, depth + 1))


def _names(code: CodeType) -> set[str]:
    """Return the names that `code` uses, those of functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


class LayoutGuard:
    """Function through which the calls of a model in channels_last go.

    With `late` the model is contiguous at first, and changes with its first call. After a change,
    there or back, `done` gets a line about the layout and `changed` is called with it.
    """

    def __init__(
        self,
        model: nn.Module,
        done: MutableMapping[str, str],
        changed: Callable[[torch.memory_format], None],
        *,
        late: bool,
    ) -> None:
        """Look at the code of `model`; nothing is changed yet."""
        self._model, self._done, self._changed = model, done, changed
        self._late = late
        self._always = needs_strides(model)
        self._went_well: set[tuple[bool, bool]] = set()
        self._contiguous = False

    def __call__(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return `call(*args, **kwargs)`, contiguous as plain PyTorch's result would be."""
        if self._contiguous:
            return call(*args, **kwargs)
        if self._late:
            self._late = False
            self._model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._done["layout"] = "channels_last"
            self._changed(torch.channels_last)
        kind = (self._model.training, torch.is_grad_enabled())
        before = _State(self._model) if self._always or kind not in self._went_well else None
        try:
            result = call(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            if not _STRIDES_TO_BLAME.search(str(error)):
                raise
            if before is not None:
                before.put_back()
            self._become_contiguous(error)
            args, kwargs = map_tensors(_as_contiguous, (args, kwargs))
            return call(*args, **kwargs)
        self._went_well.add(kind)
        return map_tensors(_as_contiguous, result)

    def _become_contiguous(self, error: BaseException) -> None:
        self._contiguous = True
        for tensor in [*self._model.parameters(), *self._model.buffers()]:
            tensor.data = _as_contiguous(tensor.data)
            if tensor.grad is not None:
                tensor.grad = _as_contiguous(tensor.grad)
        reason = next(
            line for line in str(error).splitlines() if _STRIDES_TO_BLAME.search(line)
        ).strip()[:160]
        self._done["layout"] = f"contiguous: the model does not work in channels_last ({reason})"
        if process_group.rank() == 0:
            announce(
                self._model,
                "it does not work in channels_last, often for a `.view` that could be `.reshape`",
            )
        self._changed(torch.contiguous_format)


def announce(model: nn.Module, reason: str) -> None:
    """Print why `model` is contiguous though it could gain from channels_last."""
    note(
        f"{type(model).__name__} stays contiguous: {reason}. config.memory.layout = "
        "'contiguous' says so beforehand."
    )


def _as_contiguous(tensor: Tensor) -> Tensor:
    """Return `tensor` contiguous if it lies in channels_last, else as it is."""
    if (
        tensor.layout is torch.strided
        and tensor.dim() == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    ):
        return tensor.contiguous()
    return tensor


class _State:
    """Buffers and random states, which a call of a model may change before it fails."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = list(model.buffers()) if model.training else []
        self._values = [buffer.detach().clone() for buffer in self._buffers]
        self._random = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def put_back(self) -> None:
        """Restore the buffers and the random states."""
        with torch.no_grad():
            for buffer, value in zip(self._buffers, self._values, strict=True):
                buffer.copy_(value)
        torch.set_rng_state(self._random)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
