"""Weights as a safetensors file, written past the page cache.

The format (https://github.com/huggingface/safetensors) is eight bytes with the length of a header,
the header in JSON, then the tensors' bytes. The library that defines it can only write through the
page cache, or to memory. It reads these files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gallery_lib.checkpoint.direct_files import DirectFile
from gallery_lib.checkpoint.manifest import FileFacts

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
}
_ALIGNED = 8


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is memory of its own with a dtype that the format has.

    Sparse, quantised, nested and expanded tensors are not, and neither are subclasses that wrap
    other tensors.
    """
    return not (
        is_lazy(tensor)
        or is_traceable_wrapper_subclass(tensor)
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_meta
        or _name(tensor.dtype) not in _NAMES  # of quantised ones too
        or any(
            not step and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
    )


def write(path: Path, weights: Mapping[str, Tensor]) -> FileFacts:
    """Write contiguous plain weights on the CPU to a new file; return its length and digest.

    Raises:
        OSError: the disk is full, or fails.
    """
    # Wide elements first, so that each tensor begins at a multiple of its element's size.
    order = sorted(weights, key=lambda name: (-weights[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        weight, begin = weights[name], end
        end += weight.nbytes
        header[name] = {
            "dtype": _NAMES[_name(weight.dtype)],
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with DirectFile(path) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            if weights[name].numel():
                file.write(weights[name].detach().reshape(-1).view(torch.uint8).numpy())
    assert file.facts is not None
    return file.facts


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
