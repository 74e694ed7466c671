"""Our C++ for the CPU: built with the machine's compiler, kept on disk, and called with ctypes.

ctypes calls run without the interpreter's lock (GIL). Inductor needs the same compiler. Without one
plain torch does the same work, which one warning says. The name of a built file is a hash of the
source, the headers, the command, and the processor that it was built for.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.kernels.runtime import builds, kept_code
from gallery_lib.kernels.runtime.fallback import KernelsNotUsed
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
    with builds.under_way(), tempfile.TemporaryDirectory() as scratch:
        new = Path(scratch) / built.name
        subprocess.run(
            [*command, str(source), "-o", str(new)], check=True, capture_output=True, text=True
        )
        try:
            kept_code.keep(built, new.read_bytes())
        except OSError:  # a cache that cannot be written: it is built again next time
            return _loaded_from(new)
    return built


def _loaded_from(library: Path) -> Path:
    """Load the library, so that it stays loaded when its file goes; return its path."""
    ctypes.CDLL(str(library))
    return library
