"""NVRTC compilation: from a `.cu` file to machine code for one architecture, kept on disk.

Neither nvcc nor a GPU is needed: torch's CUDA wheels bring NVRTC and the CUDA headers, and
`cuda-core` calls NVRTC. The key of a cached file is a hash of everything that the machine code
depends on: the source with the files of ours that it includes, the defines, the architecture, the
options, and the versions of NVRTC and cuda-core.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import re
from pathlib import Path
from typing import NamedTuple

from gallery_lib.errors import GalleryError
from gallery_lib.kernels.runtime import kept_code

SOURCES = Path(__file__).parents[1] / "cuda"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_OPTIONS = {
    "std": "c++17",
    "ptxas_options": ["-v"],
    "fma": True,
    "ftz": False,
    "prec_div": True,
    "prec_sqrt": True,
}
"""Options of every compilation: IEEE division and square root, denormals kept. `-v` makes ptxas
report registers and spills."""

Defines = tuple[tuple[str, str], ...]


class CompilationFailed(GalleryError, RuntimeError):
    """Error: NVRTC refused a source of ours, or is missing. The message holds its log."""


class Compiled(NamedTuple):
    """Machine code of one source, and what ptxas printed about it."""

    cubin: bytes
    log: str


def source_with_includes(source: str, folder: Path = SOURCES) -> dict[str, str]:
    """Return the text of `source` and of every file of ours that it includes, by name."""
    texts: dict[str, str] = {}
    waiting = [source]
    while waiting:
        name = waiting.pop(0)
        if name not in texts:
            texts[name] = (folder / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(texts[name])
    return texts


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of NVRTC and cuda-core.

    Raises:
        CompilationFailed: the message names what is missing.
    """
    try:
        import cuda.core
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        # cuda-pathfinder's DynamicLibNotFoundError is a RuntimeError.
        raise CompilationFailed(
            f"NVRTC cannot be used: {error}. Install cuda-core, and torch with its CUDA wheels."
        ) from error
    return {"nvrtc": f"{major}.{minor}", "cuda-core": cuda.core.__version__}


@functools.cache
def supported_architectures() -> tuple[int, ...]:
    """Return the architectures that this NVRTC compiles for, as 75, 80, and so on."""
    versions()
    from cuda.bindings import nvrtc

    return tuple(nvrtc.nvrtcGetSupportedArchs()[1])


def cache_key(source: str, defines: Defines, architecture: int, folder: Path = SOURCES) -> str:
    """Return the name under which the machine code is kept."""
    everything = [
        list(source_with_includes(source, folder).items()),
        sorted(defines),
        architecture,
        _OPTIONS,
        versions(),
    ]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()[:32]


def compiled(source: str, defines: Defines, architecture: int, folder: Path = SOURCES) -> Compiled:
    """Return the machine code of `cuda/<source>` with `defines` for sm_<architecture>.

    The code comes from the cache, or is compiled into it.

    Raises:
        CompilationFailed: with the compiler's log.
    """
    cache = kept_code.folder("kernels")
    key = cache_key(source, defines, architecture, folder)
    cubin, log = cache / f"{key}.cubin", cache / f"{key}.log"
    if kept_code.sound(cubin) and kept_code.sound(log):
        return Compiled(cubin.read_bytes(), log.read_text(encoding="utf-8"))
    with kept_code.build():
        result = _compile(source, defines, architecture, folder)
    # With a cache that cannot be written, the source is compiled again next time.
    with contextlib.suppress(OSError):
        kept_code.keep(log, result.log.encode())
        kept_code.keep(cubin, result.cubin)
    return result


def _compile(source: str, defines: Defines, architecture: int, folder: Path) -> Compiled:
    log = io.StringIO()
    text = source_with_includes(source, folder)[source]
    try:
        from cuda.core import Program, ProgramOptions
        from cuda.pathfinder import find_nvidia_header_directory

        headers = find_nvidia_header_directory("cudart")
        if headers is None:
            raise FileNotFoundError(
                "the CUDA headers (cuda_fp16.h) were not found. They are in the package "
                "nvidia-cuda-runtime."
            )
        options = ProgramOptions(
            name=source,
            arch=f"sm_{architecture}",
            include_path=[str(folder), headers],
            define_macro=list(defines) or None,
            **_OPTIONS,
        )
        code = Program(text, "c++", options).compile("cubin", logs=log)
    # cuda-core's NVRTCError is private, and other releases know other options.
    except Exception as error:
        raise CompilationFailed(
            f"NVRTC could not compile {source} for sm_{architecture} with {dict(defines)}:\n{error}"
        ) from error
    # Without the compile time, the same code has the same log.
    lines = [
        line for line in log.getvalue().strip("\0\n").splitlines() if "Compile time" not in line
    ]
    return Compiled(bytes(code.code), "\n".join(lines) + "\n")
