"""Own kernels on the fake device: their "machine code" names the library built for the host."""

from __future__ import annotations

from pathlib import Path

from cuda_on_host import host

from gallery_lib.kernels.runtime import launch, nvrtc
from gallery_lib.kernels.runtime.nvrtc import Compiled, Defines

_WORD = "fake GPU: "  # kernels.cpp knows it


def _compiled(
    source: str, defines: Defines, architecture: int, folder: Path = nvrtc.SOURCES
) -> Compiled:
    library = host.library(source, defines, folder)
    return Compiled(f"{_WORD}{library._name}\0".encode(), "", from_cache=True)


def install() -> None:
    """Let launches take the host's libraries in place of NVRTC's machine code."""
    launch.compiled = _compiled
