"""Masks in the compiler's C++ for CPUs: bool tensors read and written by vector instructions.

A mask that the forward pass keeps, of ReLU or dropout, is a bool tensor in memory and a vector of
floats in registers. torch's headers convert between the two in scalar loops, which rely on the C++
compiler to vectorise them, and Inductor forbids it that (`-fno-tree-loop-vectorize`). A mask of
three million elements then takes 8 ms to write where 0.2 are enough. Where this pass is asked for,
Inductor writes each such load and store as a conversion from or to bytes, for which the headers
have vector instructions. No value changes, and code that is compiled without the pass stays as it
is.

The lines that Inductor writes are recognised by their form. Lines of another form, as a later torch
may write them, stay as they are.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import fx
from torch._inductor import config

from gallery_lib.compiler.passes.graph_pass import Pass

_LOAD = re.compile(r"at::vec::VecMask<float,\d+>::from\((?P<arguments>.+)\)")
_STORE = re.compile(r"(?P<value>\w+)\.store\((?P<arguments>.+)\);")
_BYTES = "reinterpret_cast<{const}uint8_t*>({place})"


@functools.cache
def _extend_inductor() -> None:
    """Put our functions around the two of Inductor that write loads and stores."""
    from torch._inductor.codegen.cpp import CppVecKernel

    for name, around in (("_get_vec_load_line", _loading), ("_get_store_line", _storing)):
        if (plain := getattr(CppVecKernel, name, None)) is not None:
            setattr(CppVecKernel, name, around(plain))


def _pass_is_enabled() -> bool:
    """Return whether the code that is being compiled has this pass."""
    return PASS in getattr(config.post_grad_custom_post_pass, "passes", ())


def _loading(plain: Any) -> Any:
    @functools.wraps(plain)
    def load_line(
        self: Any, var: str, index: Any, dtype: torch.dtype, *rest: Any, **names: Any
    ) -> Any:
        line = plain(self, var, index, dtype, *rest, **names)
        form = _LOAD.fullmatch(line) if dtype is torch.bool and _pass_is_enabled() else None
        if form is None or (arguments := _two_arguments(form["arguments"])) is None:
            return line
        vectors, of_bytes = (self._get_num_vectors(kind) for kind in (torch.float, torch.uint8))
        place = _BYTES.format(const="const ", place=arguments[0])
        read = f"{self._get_vec_type(torch.uint8)}::loadu({place}, {arguments[1]})"
        values = f"at::vec::convert<float,{vectors},uint8_t,{of_bytes}>({read})"
        zeros = f"{self._get_vec_type(torch.float)}(0.0f)"
        return f"{self._get_mask_type()}({values} != {zeros})"

    return load_line


def _storing(plain: Any) -> Any:
    @functools.wraps(plain)
    def store_line(
        self: Any, value: Any, var: str, index: Any, dtype: torch.dtype, *rest: Any, **names: Any
    ) -> Any:
        code = plain(self, value, var, index, dtype, *rest, **names)
        line = code.getvalue().strip() if dtype is torch.bool and _pass_is_enabled() else ""
        form = _STORE.fullmatch(line)
        if form is None or (arguments := _two_arguments(form["arguments"])) is None:
            return code
        vectors, of_bytes = (self._get_num_vectors(kind) for kind in (torch.float, torch.uint8))
        values = f"{form['value']}.template to<float,{vectors}>()"
        written = f"at::vec::convert<uint8_t,{of_bytes},float,{vectors}>({values})"
        place = _BYTES.format(const="", place=arguments[0])
        ours = type(code)()
        ours.writeline(f"{written}.store({place}, {arguments[1]});")
        return ours

    return store_line


def _two_arguments(arguments: str) -> list[str] | None:
    """Return the two arguments of a C++ call, which may be calls themselves; None for others."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts] if len(parts) == 2 else None


def rewrite(graph: fx.Graph) -> None:
    """Leave `graph` as it is; its code will have the other lines."""
    _extend_inductor()


PASS = Pass("vector_masks", "post_grad_custom_post_pass", rewrite)
