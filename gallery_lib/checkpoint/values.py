"""Values in the files of checkpoints: tensors as safetensors, all else as `torch.save` writes it.

The files are data. They are read with `weights_only=True`, so nothing in them is executed.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gallery_lib.checkpoint.folders import Unusable, synchronize
from gallery_lib.errors import InputError

# --------------------------------------------------------------------------------------------------
# Tensors.


@functools.cache
def _format_name(dtype: torch.dtype) -> str | None:
    """Return the name that safetensors has for a dtype with whole bytes; None without one."""
    try:
        content = safetensors.torch.save({"": torch.empty(1, dtype=dtype)})
    except Exception:  # each version of torch and safetensors refuses in its own way
        return None
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])[""]
    return str(header["dtype"]) if header["shape"] == [1] else None


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor with memory of its own and a dtype of safetensors.

    Sparse, quantised, nested and expanded tensors are not, and neither are subclasses that wrap
    other tensors.
    """
    return isinstance(value, Tensor) and not (
        is_lazy(value)
        or is_traceable_wrapper_subclass(value)
        or value.layout is not torch.strided
        or value.is_nested
        or value.is_meta
        or value.is_quantized
        or _format_name(value.dtype) is None
        or any(not step and n > 1 for n, step in zip(value.shape, value.stride(), strict=True))
    )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous plain tensors on the CPU to a new safetensors file.

    The library would do it, too, but older versions copy all tensors to bytes first, and let
    nothing of Python go on meanwhile.

    Raises:
        OSError: the disk is full, or fails.
    """
    # Wide elements first, so that each tensor begins at a multiple of its element's size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _format_name(tensors[name].dtype),
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            if tensors[name].numel():
                content: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
                file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, on the CPU. They may be its pages: copy what is kept."""
    with _damage_named(path.parent):
        return safetensors.torch.load_file(path)


# --------------------------------------------------------------------------------------------------
# Plain values, numpy's among them, and tensors of other kinds.


def _numpys() -> list[Any]:
    """Return what pickles of numpy's numbers and arrays name, in numpy 1 and 2."""
    makers: list[Any] = [value.__reduce__()[0] for value in (np.float64(0), np.empty(0))]
    kinds = [np.ndarray, np.dtype, *(getattr(np.dtypes, name) for name in np.dtypes.__all__)]
    return [
        *((kind, f"{kind.__module__}.{kind.__name__}") for kind in kinds),
        *(
            (f, f"numpy.{core}.multiarray.{f.__name__}")
            for f in makers
            for core in ("core", "_core")
        ),
        (bytes, "builtins.bytes"),  # of an array without elements
    ]


_NUMPYS = _numpys()


def _loaded(file: Path | io.BytesIO) -> Any:
    with torch.serialization.safe_globals(_NUMPYS):
        return torch.load(file, map_location="cpu", weights_only=True)


def read_plain(path: Path) -> dict[str, Any]:
    """Return what `write_plain` has written."""
    with _damage_named(path.parent):
        return _loaded(path)


def write_plain(path: Path, values: dict[str, Any]) -> None:
    """Write values to a new file.

    Raises:
        InputError: one of them could not be read back.
        OSError: the disk is full, or fails.
    """
    try:
        content = _serialized(values)
    except Exception:
        check_plain(values)
        raise
    path.write_bytes(content)
    synchronize(path)


def check_plain(values: Mapping[str, Any]) -> None:
    """Raise InputError, with the place of the value, where one could not be read back."""
    for name, value in values.items():
        if reason := _unreadable(value):
            raise InputError(
                f"the state of the {name} cannot be saved: {reason}. Checkpoints hold tensors, "
                "numpy arrays and plain values.",
                parameter=name,
            )


def copied(value: Any) -> Any:
    """Return a nested value with every tensor copied to the host."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, value
    )


def _unreadable(value: Any) -> str:
    """Return which part of a nested value could not be read back, and why; "" where all could."""
    if not (reason := _reason_against(value)):
        return ""
    plain = (dict, list, tuple, OrderedDict)
    parts, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda part: type(part) not in plain)
    for path, part in parts:
        if why := _reason_against(part):
            kind = f"{type(part).__module__}.{type(part).__qualname__}"
            if isinstance(part, Tensor):
                kind += f" of {part.dtype}, {part.layout} ({why})"
            return f"its {pytree.keystr(path)} is a {kind}"
    return reason


def _serialized(value: Any) -> bytes:
    """Return a value as `torch.save` writes it, once it has been read back."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    _loaded(file)
    return file.getvalue()


def _reason_against(value: Any) -> str:
    try:
        _serialized(copied(value))
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        called = re.search(r"GLOBAL (\S+)", text)
        return f"reading it would execute {called[1]}" if called else text[:150]
    return ""


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of unpickling, of the archive, of safetensors
        text = " ".join(str(error).split())[:200]
        raise Unusable(folder, f"cannot be read: {text}.", damaged=True) from error
