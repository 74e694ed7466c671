"""Decision whether own kernels run for given tensors, and one announcement where they do not.

Where a CUDA device has to do without kernels, the plain-torch reference does the same work on it,
and a warning gives the reason once. On the CPU the reference is the implementation, so there is
nothing to announce.
"""

from __future__ import annotations

import functools
import warnings

import torch

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.errors import GalleryError
from gallery_lib.kernels.runtime import launch, nvrtc


class KernelsNotUsed(RuntimeWarning):
    """Warning that plain torch runs instead of a kernel of ours; the message says why."""


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
    """Return why kernels do not run on `device`, or None when they do."""
    if device.type != "cuda":
        return f"kernels run on CUDA devices, and these tensors are on {device.type!r}"
    if not kernels_enabled():
        return "own kernels are switched off in this run (GALLERY_COMPILER_OPT, GALLERY_KERNELS)"
    if torch.version.hip:
        return "this torch is built for ROCm"
    return _cannot_compile(launch.architecture(device))


@functools.cache
def announce(reason: str) -> None:
    """Warn that kernels are not used, once for each reason in a process."""
    warnings.warn(
        f"gallery_lib's CUDA kernels are not used, plain torch does their work: {reason}",
        KernelsNotUsed,
        stacklevel=3,
    )


def kernels_run(device: torch.device) -> bool:
    """Return whether kernels run on `device`; announce a CUDA device that does without."""
    reason = reason_not_used(device)
    if reason is not None and device.type == "cuda":
        announce(reason)
    return reason is None
