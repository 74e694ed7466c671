"""Accelerate every DistributedDataParallel made from now on: `import gallery_lib.comm.auto`.

`disable()` undoes it. `options` say what is done, from the end of a model's first backward pass on.
Change them, or set them beforehand by environment variables GALLERY_COMM_NAME
(GALLERY_COMM_WIRE=bf16, GALLERY_COMM_TUNE=0). Left as they are, the lossless strategies take turns
over the first steps (tuner.py). The only thing changed is the constructor of torch's class.

Example:
    >>> import torch
    >>> import gallery_lib.comm.auto
    >>> torch.distributed.init_process_group(
    ...     "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    ... )
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    >>> model(torch.ones(8, 4)).mean().backward()
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch.distributed as dist
from torch import nn

from gallery_lib.comm.accelerate_ddp import obstacle
from gallery_lib.comm.torch_ddp import after_backward, own_averaging
from gallery_lib.comm.tuner import apply
from gallery_lib.config import Comm
from gallery_lib.config import options as config_options
from gallery_lib.errors import InputError

_PREFIX = "GALLERY_COMM_"
_DDP = nn.parallel.DistributedDataParallel
# torch's own constructor, also where this module is imported anew
_plain = getattr(_DDP.__init__, "gallery_plain", _DDP.__init__)
_enabled = False


def _from_environment() -> Comm:
    """Return the options from environment variables.

    Raises:
        InputError: for a variable that names no option, or holds no value of it.
    """
    given = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in os.environ.items()
        if name.startswith(_PREFIX)
    }
    try:
        return config_options.from_mapping(Comm, {"tune": "true", **given})
    except InputError as error:
        raise InputError(f"environment variables {_PREFIX}…: {error}") from None


options = _from_environment()


def _begin(model: nn.parallel.DistributedDataParallel) -> None:
    if not own_averaging(model):  # a hook that the user has registered meanwhile wins
        apply(model, options)


@functools.wraps(_plain)
def _accelerated(self: nn.parallel.DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    _plain(self, *args, **kwargs)
    if not _enabled or dist.get_world_size() == 1:
        return
    if reason := obstacle(self):
        warnings.warn(
            f"gallery_lib.comm.auto leaves this DistributedDataParallel as it is: {reason}.",
            stacklevel=2,
        )
    else:
        after_backward(self, _begin)


_accelerated.gallery_plain = _plain  # type: ignore[attr-defined]


def enable() -> None:
    """Accelerate DistributedDataParallels from now on; importing the module does this already."""
    global _enabled
    _enabled = True
    _DDP.__init__ = _accelerated  # type: ignore[method-assign]


def disable() -> None:
    """Restore torch's own DistributedDataParallel; models made before stay as they are."""
    global _enabled
    _enabled = False
    if _DDP.__init__ is _accelerated:  # otherwise another wrapper is around ours, and stays
        _DDP.__init__ = _plain  # type: ignore[method-assign]


enable()
