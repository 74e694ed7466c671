"""Weights that a run starts from (`--pretrained`).

A tensor is taken where name and shape are those of the model. All others stay as they were drawn,
and the report names them: the head for another number of classes, say. Nothing in a file is
executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from gallery_lib.checkpoint.folders import reason_of
from gallery_lib.errors import InputError

_WRAPPERS = re.compile(r"^module\.|\b_orig_mod\.")
"""What DistributedDataParallel and torch.compile add to names."""
_SHOWN = 4


@dataclass(frozen=True)
class Fit:
    """What of a file fitted a model of `tensors` tensors; names are the model's own."""

    file: str
    tensors: int
    fitted: int
    other_shape: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        lines = {
            "of another shape in the file, so left as drawn": self.other_shape,
            "not in the file, so left as drawn": self.missing,
            "in the file and not in the model": self.unexpected,
        }
        return [
            f"{self.file}: {self.fitted} of {self.tensors} tensors of the model fitted",
            *(f"{what}: {_some(names)}" for what, names in lines.items() if names),
        ]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", … ({len(listed)} in all)" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


@torch.no_grad()
def load(model: nn.Module, file: str) -> Fit:
    """Copy what fits of the weights in a file into `model`, and return what did.

    Raises:
        InputError: for another file, or where nothing fits; the model is unchanged then.
    """
    given = read_weights(Path(file))
    # The tensors of a state dict are the model's own storage.
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    fitting = {name for name, value in own.items() if name in given and _fits(value, given[name])}
    if not fitting:
        raise InputError(
            f"pretrained: none of the {len(given)} tensors in {file} fits the model: it has "
            f"{_some(given)}, and the model "
            f"{_some(own)}. Give weights of the same architecture.",
            parameter="pretrained",
        )
    for name in fitting:
        own[name].copy_(given[name])
    # A tensor that several names share may stand under one of them alone.
    shared = {own[name].data_ptr() for name in fitting}
    other_shape = [name for name in own if name in given and name not in fitting]
    missing = [n for n, value in own.items() if n not in given and value.data_ptr() not in shared]
    return Fit(
        file=file,
        tensors=len(own),
        fitted=len(own) - len(other_shape) - len(missing),
        other_shape=other_shape,
        missing=missing,
        unexpected=[name for name in given if name not in own],
    )


def _fits(own: Tensor, given: Tensor) -> bool:
    """Return whether `given` can be copied to `own`; another precision is converted."""
    return own.shape == given.shape and own.is_floating_point() == given.is_floating_point()


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU, without what wrappers add to names.

    The file is safetensors, or what `torch.save` wrote of a state dict: bare, or under
    `state_dict` or `model`, as in a checkpoint.

    Raises:
        InputError: for another file, or one that needs code to be executed.
    """
    path = path.expanduser()
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if start[8:] == b"{":  # after eight bytes of length, safetensors has JSON
            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
        for name in ("state_dict", "model"):
            if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
                content = content[name]
        if not isinstance(content, Mapping):
            raise TypeError(f"it holds a {type(content).__name__}")
        tensors = {
            _WRAPPERS.sub("", name): value
            for name, value in content.items()
            if isinstance(name, str) and isinstance(value, Tensor)
        }
        if not tensors:
            raise TypeError(f"it holds no tensors, but {', '.join(map(repr, [*content][:5]))}")
    except Exception as error:  # of the disk, of unpickling, of the archive, of safetensors
        reason = error.strerror if isinstance(error, OSError) else reason_of(error)
        raise InputError(
            f"pretrained: {path} is no file of weights: {reason or type(error).__name__}. Give "
            "safetensors, or torch.save(model.state_dict(), FILE).",
            parameter="pretrained",
        ) from None
    return tensors
