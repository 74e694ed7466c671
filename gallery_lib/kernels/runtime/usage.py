"""Decision whether our operators are called in place of torch's, and whether kernels run then.

The loss, the loader and the optimizer ask whether a run uses our operators. On CUDA it does when
kernels run there: then, and only then, they are faster. On the CPU, and on a GPU that kernels are
not compiled for, plain torch stands in for a kernel. torch's own function is the better choice
there. What has C++ for the CPU is chosen elsewhere: batch norm by a graph pass
(`passes.large_batch_norms` of the compiler), the loss by its size
(`gallery_lib.tasks.domains.cross_entropy`).

Where a CUDA device has to do without kernels, the plain-torch reference does the same work on it,
and a warning gives the reason once. On the CPU the reference is the implementation, so there is
nothing to announce.
"""

from __future__ import annotations

import functools
import textwrap
import warnings

import torch

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.errors import GalleryError
from gallery_lib.kernels.runtime import launch, nvrtc


class KernelsNotUsed(RuntimeWarning):
    """Warning that plain torch runs instead of a kernel of ours; the message says why."""


def reason_not_used(device: torch.device) -> str | None:
    """Return why a run on `device` does without our operators, or None when it uses them."""
    return "no CUDA device" if device.type == "cpu" else reason_not_launched(device)


def reason_not_launched(device: torch.device) -> str | None:
    """Return why kernels do not run on `device`, or None when they do."""
    if launch.on_host():
        return None
    if device.type != "cuda":
        return f"kernels run on CUDA devices, and these tensors are on {device.type!r}"
    if not kernels_enabled():
        return "own kernels are switched off in this run (GALLERY_COMPILER_OPT, GALLERY_KERNELS)"
    if torch.version.hip:
        return "this torch is built for ROCm"
    return _cannot_compile(launch.architecture(device))


@functools.cache
def _cannot_compile(architecture: int) -> str | None:
    """Return why kernels cannot be compiled, in one line; None: one has been."""
    try:
        if architecture not in nvrtc.supported_architectures():
            return f"NVRTC {nvrtc.versions()['nvrtc']} does not compile for sm_{architecture}"
        launch.compiled("image_batch.cu", launch.ELEMENTS[torch.float32], architecture)
    except GalleryError as error:
        return textwrap.shorten(str(error), 300)
    return None


def used(device: torch.device) -> bool:
    """Return whether a run uses our operators for tensors on `device`."""
    return reason_not_used(device) is None


def kernels_run(device: torch.device) -> bool:
    """Return whether kernels run on `device`; announce a CUDA device that does without."""
    reason = reason_not_launched(device)
    if reason is not None and device.type == "cuda":
        announce(reason)
    return reason is None


@functools.cache
def announce(reason: str) -> None:
    """Warn that kernels are not used, once for each reason in a process."""
    warnings.warn(
        f"gallery_lib's CUDA kernels are not used, plain torch does their work: {reason}",
        KernelsNotUsed,
        stacklevel=3,
    )
