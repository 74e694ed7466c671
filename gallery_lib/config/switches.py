"""Is the accelerated backend on in this run? Are its own CUDA kernels?

The launcher sets two environment variables for the processes that it starts, and `train()` for the time of its run; a
script of the reader's own may set them itself. With the toggle off, none of the accelerated code runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError

COMPILER_VARIABLE = "GALLERY_COMPILER_OPT"
KERNELS_VARIABLE = "GALLERY_KERNELS"


def _read(variable: str, default: bool) -> bool:
    value = os.environ.get(variable, "1" if default else "0")
    if value not in ("0", "1"):
        raise InputError(f"environment variable {variable}={value!r} must be 0 or 1.")
    return value == "1"


def compiler_enabled() -> bool:
    """Whether this run uses the accelerated backend (`--compiler-opt`, or GALLERY_COMPILER_OPT=1)."""
    return _read(COMPILER_VARIABLE, False)


def kernels_enabled() -> bool:
    """Whether this run uses own CUDA kernels: the backend is on, and `--no-kernels` was not given."""
    return compiler_enabled() and _read(KERNELS_VARIABLE, True)


def environment(config: TrainConfig) -> dict[str, str]:
    """The variables that carry the toggle of `config` into the processes of its run."""
    return {
        COMPILER_VARIABLE: str(int(config.compiler_opt)),
        KERNELS_VARIABLE: str(int(config.compiler_opt and config.kernels)),
    }


@contextlib.contextmanager
def of_run(config: TrainConfig) -> Iterator[None]:
    """Within, the answers are those of `config`, however this process was started."""
    before = {name: os.environ.get(name) for name in environment(config)}
    os.environ.update(environment(config))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
