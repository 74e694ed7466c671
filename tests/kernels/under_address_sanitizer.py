"""Run the C++ of `kernels/cpu` under the address sanitizer, on drawn tensors.

    python tests/kernels/under_address_sanitizer.py --cases 20000 --seed 7

The C++ is written for some of the tensors and not for others. The script starts itself again below
libasan, builds the sources with -fsanitize=address, and ends with exit code 0 if no access was
wrong. The sanitizer ends the process at the first one and prints where it was. `--planted` makes a
wrong access on purpose, which must be noticed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

# As a script it finds the tests' packages by itself.
if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

PLANTED = """
#include <cstdint>
extern "C" float after_the_end(const float* values, int64_t count) { return values[count]; }
"""
OPTIONS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]


def libasan() -> str | None:
    """Return what to preload, or None where it is missing.

    These are the compiler's libasan, and libstdc++, whose exceptions libasan wraps.
    """
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):
        try:
            command = ["g++", f"-print-file-name={name}"]
            path = Path(
                subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        if not path.is_absolute():
            return None
        found.append(str(path.resolve()))
    return ":".join(found)


def environment(library: str) -> dict[str, str]:
    """Return the variables that preload libasan and make every allocation come from malloc.

    libasan watches malloc.
    """
    options = {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "PYTHONMALLOC": "malloc",
        "OMP_NUM_THREADS": "1",
    }
    return os.environ | options | {"LD_PRELOAD": library}


def run(cases: int, seed: int) -> None:
    import torch
    from kernels import drawn_calls as calls

    ways: tuple[Callable[[random.Random], None], ...] = (
        calls.step,
        calls.packing,
        calls.normalising,
        calls.masking,
        calls.pooling,
        calls.multiplying,
        calls.losses,
        calls.damaged_descriptors,
        calls.training,
    )
    draw = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(2)
    outcomes: Counter[str] = Counter()
    for number in range(cases):
        way = ways[number % len(ways)]
        try:
            way(draw)
            outcomes[f"{way.__name__} done"] += 1
        except (ValueError, RuntimeError) as error:
            # InputError is a ValueError; torch's own errors are RuntimeErrors.
            outcomes[f"{way.__name__}: {type(error).__name__}"] += 1
    for name, times in sorted(outcomes.items()):
        print(f"{times:6d} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planted", action="store_true")
    arguments = parser.parse_args()
    library = libasan()
    if library is None:
        sys.exit("there is no libasan: install g++ with its sanitizers")
    if os.environ.get("LD_PRELOAD") != library:
        os.execve(sys.executable, [sys.executable, *sys.argv], environment(library))
    from gallery_lib.kernels.runtime import cpp

    cpp._OPTIONS += OPTIONS
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GALLERY_CACHE_DIR"] = folder
        if arguments.planted:
            cpp.SOURCES = Path(folder)
            (Path(folder) / "planted.cpp").write_text(PLANTED)
            planted = cpp.library("planted.cpp")
            assert planted is not None
            values = (ctypes.c_float * 100)()
            planted.after_the_end(values, ctypes.c_longlong(100))
        else:
            run(arguments.cases, arguments.seed)


if __name__ == "__main__":
    main()
