"""Are own kernels used for these tensors? When not on a CUDA device, it is said once, with the reason.

The plain-torch reference then does the same work on the device. On the CPU the reference is the implementation, and
there is nothing to announce.
"""

from __future__ import annotations

import functools
import warnings

import torch

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.errors import GalleryError
from gallery_lib.kernels.runtime import launch, nvrtc


class KernelsNotUsed(RuntimeWarning):
    """On a CUDA device the plain-torch reference runs instead of a kernel; the message says why."""


@functools.cache
def _cannot_compile(architecture: int) -> str | None:
    try:
        known = nvrtc.supported_architectures()
    except GalleryError as error:
        return str(error)
    if architecture not in known:
        return f"NVRTC {nvrtc.versions()['nvrtc']} does not compile for sm_{architecture}"
    return None


def reason_not_used(device: torch.device) -> str | None:
    """Why kernels do not run on `device`; None when they do."""
    if device.type != "cuda":
        return f"kernels run on CUDA devices, and these tensors are on {device.type!r}"
    if not kernels_enabled():
        return "own kernels are switched off in this run (GALLERY_COMPILER_OPT, GALLERY_KERNELS)"
    if torch.version.hip:
        return "this torch is built for ROCm"
    return _cannot_compile(launch.architecture(device))


@functools.cache
def announce(reason: str) -> None:
    """Warn, once for each reason in a process."""
    warnings.warn(
        f"gallery_lib's CUDA kernels are not used, plain torch does their work: {reason}",
        KernelsNotUsed,
        stacklevel=3,
    )


def kernels_run(device: torch.device) -> bool:
    """Whether a kernel is to be launched; says so when a CUDA device has to do without."""
    reason = reason_not_used(device)
    if reason is not None and device.type == "cuda":
        announce(reason)
    return reason is None
