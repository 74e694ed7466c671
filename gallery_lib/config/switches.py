"""Switches of this run: whether the accelerated backend is on, and whether its CUDA kernels are.

The launcher sets two environment variables for the processes that it starts, and `train()` sets
them during its run. A script of the reader's own may set them itself. With the backend switched
off, none of the accelerated code runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gallery_lib.errors import InputError

COMPILER_VARIABLE = "GALLERY_COMPILER_OPT"
KERNELS_VARIABLE = "GALLERY_KERNELS"


def _read(variable: str, default: bool) -> bool:
    value = os.environ.get(variable, "1" if default else "0")
    if value not in ("0", "1"):
        raise InputError(
            f"environment variable {variable}={value!r} must be 0 or 1.", parameter=variable
        )
    return value == "1"


def compiler_enabled() -> bool:
    """Return whether this run uses the accelerated backend, as GALLERY_COMPILER_OPT=1 says."""
    return _read(COMPILER_VARIABLE, False)


def kernels_enabled() -> bool:
    """Return whether this run uses own kernels: all on CUDA, the loss's on the CPU."""
    return compiler_enabled() and _read(KERNELS_VARIABLE, True)


def variables_of(compiler: bool, kernels: bool) -> dict[str, str]:
    """Return the variables that carry the switches into the processes of a run."""
    return {
        COMPILER_VARIABLE: str(int(compiler)),
        KERNELS_VARIABLE: str(int(compiler and kernels)),
    }


@contextlib.contextmanager
def of_run(compiler: bool, kernels: bool) -> Iterator[None]:
    """Context: set the switches to these, however this process was started."""
    switches = variables_of(compiler, kernels)
    before = {name: os.environ.pop(name, None) for name in switches}
    os.environ.update(switches)
    try:
        yield
    finally:
        for name in before:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in before.items() if value is not None})
