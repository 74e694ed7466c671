"""Tensors by key out of a file of weights: safetensors, or what `torch.save` wrote of a state dict.

The format is told from the content. Nothing in a file is executed: `torch.load` reads tensors and
plain containers alone. What trainers wrap around a state dict (`{"model": …, "epoch": …}`) is
unwrapped.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError

WRAPPERS = ("state_dict", "model_state_dict", "model", "weights", "net", "network", "module")
"""Names under which trainers keep a model's state dict, in the order of precedence."""

_DEPTH = 3  # of wrappers in wrappers
_CODE = re.compile(r"Unsupported (global|class|operand)|TorchScript|GLOBAL (\S+)", re.IGNORECASE)


def read(path: Path, parameter: str) -> dict[str, Tensor]:
    """Return the tensors of the file `path` by key, on the CPU, out of their wrappers.

    Args:
        path: the file.
        parameter: the option that named it, for the message.

    Raises:
        InputError: for a file that is missing, damaged, of another format, without tensors, or that
            needs code to be executed.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        instead = (
            " A run's folder is given as init_from."
            if path.is_dir() and parameter == "pretrained"
            else ""
        )
        raise InputError(
            f"{parameter}: cannot read {path}: {error.strerror}. Give a file of weights, "
            f"safetensors or a state dict of torch.save.{instead}",
            parameter=parameter,
        ) from None
    # After eight bytes of length, safetensors has JSON.
    content = _safetensors(path, parameter) if start[8:] == b"{" else _torch(path, parameter)
    tensors = _unwrapped(content)
    if not tensors:
        raise InputError(
            f"{parameter}: {path} holds {_described(content)} and no tensors by name. Save them "
            "with torch.save(model.state_dict(), FILE).",
            parameter=parameter,
        )
    return tensors


def _safetensors(path: Path, parameter: str) -> dict[str, Tensor]:
    import safetensors
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, parameter, error) from None


def _torch(path: Path, parameter: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # it is torch.load that refuses TorchScript
            return _load(path)
    except Exception as error:  # of unpickling, of the archive, of the system
        code = _CODE.search(str(error))
        if isinstance(error, (pickle.UnpicklingError, RuntimeError)) and code:
            raise InputError(
                f"{parameter}: {path} holds more than tensors ({_what_code(str(error))}), and "
                "loading it would execute its code. Where you trust it, load it yourself and save "
                "the tensors: torch.save(model.state_dict(), FILE).",
                parameter=parameter,
            ) from None
        raise _unreadable(path, parameter, error) from None


def _load(path: Path) -> Any:
    try:
        # Pages that are not needed are not read.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
    # torch's format before 1.6 cannot be mapped.
    return torch.load(path, map_location="cpu", weights_only=True)


def _what_code(message: str) -> str:
    if match := re.search(r"GLOBAL (\S+)", message):
        return match[1].rstrip(".,")
    return "a TorchScript archive" if "TorchScript" in message else "Python objects"


def _unreadable(path: Path, parameter: str, error: Exception) -> InputError:
    text = " ".join(str(error).split()).partition(". ")[0]
    reason = text if " " in text else type(error).__name__
    return InputError(
        f"{parameter}: {path} is damaged, or no file of weights ({reason}). Give a safetensors "
        "file, or a state dict of torch.save.",
        parameter=parameter,
    )


def _unwrapped(content: Any, depth: int = _DEPTH) -> dict[str, Tensor]:
    """Return the tensors by key in `content`, or in the first wrapper that has some."""
    if not isinstance(content, Mapping):
        return {}
    for name in WRAPPERS if depth else ():
        if tensors := _unwrapped(content.get(name), depth - 1):
            return tensors
    return {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a dict of {', '.join(map(repr, list(content)[:5])) or 'nothing'}"
    return f"a {type(content).__name__}"
