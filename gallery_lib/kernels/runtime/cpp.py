"""Our C++ for the CPU: built with the machine's compiler, kept on disk, and called with ctypes.

ctypes calls run without the interpreter's lock (GIL). Inductor needs the same compiler. Without one
plain torch does the same work, which one warning says. The name of a built file is a hash of the
source, the headers, the command, and the processor that it was built for.

C++ gets descriptors of tensors (`cpu/tensor.h`). A descriptor holds where a tensor starts, how many
bytes its storage has from there, its dtype, sizes and strides. With these the C++ checks each
tensor before it touches memory. It returns 0, or a number that holds the reason, the row and the
column of the refused tensor. In the second case nothing was written.
"""

from __future__ import annotations

import array
import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import kept_code
from gallery_lib.kernels.runtime.launch import structure
from gallery_lib.kernels.runtime.usage import KernelsNotUsed
from gallery_lib.system import hardware

SOURCES = Path(__file__).parents[1] / "cpu"
_OPTIONS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
]
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


def _for_this_processor() -> list[str]:
    return [
        "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"
    ]


@functools.cache
def library(source: str, *options: str) -> ctypes.CDLL | None:
    """Return the library built from `cpu/<source>` with further compiler options, loaded.

    Returns None where it cannot be built or loaded; a warning says why.
    """
    compiler = hardware.cpp_compiler()
    reason = "there is no C++ compiler; install g++"
    if cxx := os.environ.get("CXX"):
        reason = f"CXX={cxx} names no compiler that is there"
    if compiler is not None:
        try:
            return ctypes.CDLL(str(_built(compiler, SOURCES / source, options)))
        except subprocess.CalledProcessError as error:
            reason = f"{compiler} could not build it: {error.stderr.strip()[:500]}"
        except OSError as error:
            reason = str(error)
    warnings.warn(
        f"gallery_lib's {source} is not used, plain torch does its work more slowly: {reason}",
        KernelsNotUsed,
        stacklevel=2,
    )
    return None


def _built(compiler: str, source: Path, options: Sequence[str]) -> Path:
    command = [compiler, *_OPTIONS, *options, *_for_this_processor()]
    processor = sorted(hardware.cpu_flags()) or platform.platform()  # what `native` means
    texts = [
        file.read_text(encoding="utf-8") for file in (source, *sorted(source.parent.glob("*.h")))
    ]
    everything = repr([*texts, command, processor])
    cache = kept_code.folder("cpu_kernels")
    built = cache / f"{source.stem}-{hashlib.sha256(everything.encode()).hexdigest()[:24]}.so"
    if kept_code.sound(built):
        return built
    with kept_code.build(), tempfile.TemporaryDirectory() as scratch:
        new = Path(scratch) / built.name
        subprocess.run(
            [*command, str(source), "-o", str(new)], check=True, capture_output=True, text=True
        )
        try:
            kept_code.keep(built, new.read_bytes())
        except OSError:  # a cache that cannot be written: it is built again next time
            ctypes.CDLL(str(new))  # stays loaded when its file goes
            return new
    return built


class Functions:
    """Functions of one C++ source that take one structure, which begins with descriptors."""

    def __init__(self, source: str, *options: str, **fields: type) -> None:
        """Take the compiler's options, and what follows the descriptors in the structure."""
        self._library = functools.partial(library, source, *options)
        self.arguments = structure(descriptors=ctypes.c_void_p, length=ctypes.c_longlong, **fields)

    def available(self) -> bool:
        """Return whether the C++ could be built here; if not, a warning has said so."""
        return self._library() is not None

    def call(
        self,
        name: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Tensor]],
        *values: Any,
        options: ctypes.Structure | None = None,
    ) -> None:
        """Call a function, which has to be available.

        Args:
            name: name of the function.
            columns: a name for each tensor of a row, for errors.
            rows: what the function reads and writes.
            values: what follows the descriptors in the structure.
            options: a second structure.

        Raises:
            Refused: for tensors that do not fit together; nothing is changed then.
        """
        descriptors = described(list(chain.from_iterable(rows)))
        structures = [self.arguments(*descriptors.buffer_info(), *values)]
        if options is not None:
            structures.append(options)
        function = getattr(self._library(), name)
        function.restype = ctypes.c_longlong
        if code := function(*map(ctypes.byref, structures)):
            raise _refusal(code, name if options is None else f"{name}'s step", rows, columns)


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


def _refusal(
    code: int, function: str, rows: Sequence[Sequence[Tensor]], columns: Sequence[str]
) -> Refused:
    """Return an error that names tensor and reason; `code` is what the C++ function returned."""
    reason, column, row = code & 0xFF, code >> 8 & 0xFF, code >> 16
    about, parameter = "", None
    if row < len(rows) and column < len(rows[row]):
        tensor = rows[row][column]
        name = columns[column] if len(rows) == 1 else f"{columns[column]}[{row}]"
        layout = f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        about, parameter = f" {name}, {layout}", columns[column]
    return Refused(
        f"{function} does not take{about}: {_REASONS[reason]}.", reason, parameter=parameter
    )
