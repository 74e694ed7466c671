"""Descriptors of tensors for C++ on the CPU, and errors from what it refuses (`cpu/tensor.h`).

A descriptor holds where a tensor starts, how many bytes its storage has from there, its dtype,
sizes and strides. With these the C++ checks each tensor before it touches memory. It returns 0, or
a number that holds the reason, the row and the column of the refused tensor. In the second case
nothing was written.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError

_DTYPES = {torch.float32: 1, torch.uint8: 2, torch.bfloat16: 3, torch.int64: 4, torch.int32: 5}
UNALIGNED, OVERLAP = 7, 8
_REASONS = {
    1: "it has another dtype than this step is written for",
    2: "its shape does not fit the others'",
    3: "it has gaps, or elements that share memory",
    4: "its layout differs from the weight's, or is none that this function takes",
    5: "its storage has less memory than its shape asks for",
    6: "it has no memory",
    UNALIGNED: "its address is no multiple of its element size",
    OVERLAP: "it shares memory with another tensor of this step",
    9: "the arguments do not fit together",
    10: "there is no memory left for the step's own lists",
}


class Refused(InputError):
    """Error for a tensor that C++ does not take.

    Nothing was written; `reason` is one of the keys of `_REASONS`.
    """

    def __init__(self, message: str, reason: int, *, parameter: str | None = None) -> None:
        """Keep the reason's number beside the message."""
        super().__init__(message, parameter=parameter)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Return constructor, arguments and attributes, so that the error can be pickled."""
        return type(self), (self.args[0], self.reason), self.__dict__


def described(tensors: Sequence[Tensor]) -> Any:
    """Return the descriptors of tensors as an array of int64.

    The columns of `cpu/tensor.h` follow one another, since torch's getters are fast when mapped.

    Raises:
        InputError: for a tensor that is not on the CPU, or has no strides.
    """
    layouts = set(map(attrgetter("layout"), tensors))
    if not layouts <= {torch.strided} or not all(map(attrgetter("is_cpu"), tensors)):
        kinds = sorted({f"{tensor.layout} on {tensor.device}" for tensor in tensors})
        raise InputError(
            f"C++ on the CPU takes strided tensors there; got {', '.join(kinds)}.",
            parameter="tensors",
        )
    numbers: list[Any] = [
        *map(Tensor.data_ptr, tensors),
        *map(torch.UntypedStorage.nbytes, map(Tensor.untyped_storage, tensors)),
        *map(Tensor.storage_offset, tensors),
        *[_DTYPES.get(tensor.dtype, 0) for tensor in tensors],
        *map(Tensor.dim, tensors),
        *chain.from_iterable(map(Tensor.size, tensors)),
        *chain.from_iterable(map(Tensor.stride, tensors)),
    ]
    return array.array("q", numbers)


def check(
    code: int, function: str, rows: Sequence[Sequence[Tensor]], columns: Sequence[str]
) -> None:
    """Raise Refused, which names tensor and reason, unless `code` is 0.

    `code` is what the C++ function returned.
    """
    if not code:
        return
    reason, column, row = code & 0xFF, code >> 8 & 0xFF, code >> 16
    about, parameter = "", None
    if row < len(rows) and column < len(rows[row]):
        tensor = rows[row][column]
        name = columns[column] if len(rows) == 1 else f"{columns[column]}[{row}]"
        layout = f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        about, parameter = f" {name}, {layout}", columns[column]
    raise Refused(
        f"{function} does not take{about}: {_REASONS[reason]}.", reason, parameter=parameter
    )


def call(
    library: ctypes.CDLL | None,
    name: str,
    arguments: ctypes.Structure,
    tensors: Sequence[Tensor],
    columns: Sequence[str],
) -> None:
    """Call a function of a library that was built, with its one structure.

    Args:
        library: what `cpu_library.library` returned; not None.
        name: of the function, which returns a code for `check`.
        arguments: the structure, with the address of descriptors that the caller keeps.
        tensors: what the descriptors describe, for the error.
        columns: a name for each of them.

    Raises:
        Refused: for tensors that do not fit together; nothing is changed then.
    """
    assert library is not None
    check(entry(library, name)(ctypes.byref(arguments)), name, [tensors], columns)


def entry(library: ctypes.CDLL, name: str) -> Any:
    """Return a function of the library that returns a code for `check`."""
    function = getattr(library, name)
    function.restype = ctypes.c_longlong
    return function
