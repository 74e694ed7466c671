"""Execution of a `Launch` on the CPU: g++ builds its `.cu` file, and ctypes calls the kernel.

The `.cu` file is compiled against the shim. Builds are kept in `.cache/cuda_on_host`, under a hash
of all that they are made of. `-Bsymbolic` is among the options because a kernel may be called
`advance`, like a function of the C library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from gallery_lib.kernels.runtime import nvrtc
from gallery_lib.kernels.runtime.launch import THREADS, Launch
from gallery_lib.kernels.runtime.nvrtc import Defines, source_with_includes
from gallery_lib.system import paths

SHIM = Path(__file__).parent / "shim"
SANITIZED = (
    "alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow,null,return,unreachable"
)
COMMAND = (
    "g++ -std=c++17 -O1 -g0 -fPIC -shared -Wl,-Bsymbolic -fno-strict-aliasing -ffp-contract=off "
    f"-U_FORTIFY_SOURCE -fsanitize={SANITIZED} -fsanitize-undefined-trap-on-error "
    "-Wall -Wno-unused -Wno-unknown-pragmas -Wno-clobbered"
).split()
SOURCES = nvrtc.SOURCES
"""Folder of the `.cu` files; mutation.py puts one with broken files in its place."""
_KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')


class KernelFault(AssertionError):
    """Raised when a kernel does what it must not. The message says what, and in which thread."""


def _entry_points(text: str, source: str) -> str:
    kernels = _KERNEL.findall(text)
    assert kernels, f'{source} has no line that starts with `extern "C" __global__ void`'
    parts = [
        f'#include "cuda_on_host.h"\n#include "{source}"',
        'extern "C" const char* trouble() { return cuda_on_host::trouble; }',
    ]
    for name in kernels:
        parts.append(
            f'extern "C" int call_{name}(const void* arguments, unsigned blocks, '
            "unsigned threads, uint64_t schedule)"
            f" {{ return cuda_on_host::call({name}, arguments, blocks, threads, schedule); }}\n"
            f'extern "C" size_t bytes_{name}() {{ return cuda_on_host::argument_bytes({name}); }}'
        )
    return "\n".join(parts) + "\n"


@functools.cache
def library(source: str, defines: Defines, folder: Path) -> ctypes.CDLL:
    """Return the source's library, built and loaded.

    Raises CalledProcessError, with g++'s messages on standard error.
    """
    texts = source_with_includes(source, folder)
    entry = _entry_points(texts[source], source)
    shim = [path.read_text() for path in sorted(SHIM.iterdir())]
    everything = repr([texts, entry, shim, defines, COMMAND])
    cache = paths.cache_dir() / "cuda_on_host"
    built = cache / f"{Path(source).stem}-{hashlib.sha256(everything.encode()).hexdigest()[:24]}.so"
    if not built.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            (Path(scratch) / "entry.cpp").write_text(entry)
            new = Path(scratch) / "new.so"
            flags = [f"-D{name}={value}" for name, value in defines]
            places = [f"-I{SHIM}", f"-I{folder}", str(Path(scratch) / "entry.cpp")]
            subprocess.run([*COMMAND, *flags, *places, "-o", str(new)], check=True)
            new.replace(built)
    loaded = ctypes.CDLL(str(built), mode=os.RTLD_LOCAL)
    loaded.trouble.restype = ctypes.c_char_p
    return loaded


def run(launch: Launch, schedule: int = 0, folder: Path | None = None) -> None:
    """Carry out `launch` on the CPU.

    Args:
        launch: the kernel with its arguments and number of blocks.
        schedule: number of the order of threads and blocks.
        folder: folder of the sources; None: SOURCES.

    Raises:
        KernelFault: The kernel does what it must not.
    """
    if launch.blocks == 0:
        return
    built = library(launch.source, launch.defines, folder or SOURCES)
    size = getattr(built, f"bytes_{launch.kernel}")
    size.restype = ctypes.c_size_t
    given = ctypes.sizeof(launch.arguments)
    assert size() == given <= 4096, (
        f"{launch.kernel} takes {size()} bytes of arguments, of which every device has 4096; "
        f"Python gives {given}"
    )
    counts = ctypes.c_uint(launch.blocks), ctypes.c_uint(THREADS), ctypes.c_uint64(schedule)
    failed = getattr(built, f"call_{launch.kernel}")(ctypes.byref(launch.arguments), *counts)
    if failed:
        raise KernelFault(f"{launch.kernel}: {built.trouble().decode()}")
