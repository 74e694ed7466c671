"""What every kernel needs on every architecture: registers, shared memory, spills, as ptxas reports them.

    python -m gallery_lib.kernels.resources

prints the table in Markdown. No GPU is needed. A spill is a register that did not fit and went to memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from gallery_lib.kernels import compilation
from gallery_lib.kernels.catalogue import VARIANTS

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)\w*'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """Of one kernel, per thread or per block."""

    source: str
    variant: str
    kernel: str
    architecture: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def resources(source: str, defines: compilation.Defines, architecture: int) -> list[Resources]:
    """One entry for each kernel of the source. Raises what `compilation.compiled` raises."""
    log = compilation.compiled(source, defines, architecture).log
    variant = " ".join(value for _, value in defines)
    rows = []
    for found in _FUNCTION.finditer(log):
        shared = re.search(r"(\d+) bytes smem", found["rest"])
        rows.append(
            Resources(
                source,
                variant,
                found["kernel"],
                int(found["architecture"]),
                int(found["registers"]),
                int(shared[1]) if shared else 0,
                int(found["stack"]),
                int(found["stores"]) + int(found["loads"]),
            )
        )
    return rows


def every_kernel() -> Iterator[Resources]:
    """All variants on all architectures that this NVRTC knows."""
    for architecture in ARCHITECTURES:
        if architecture in compilation.supported_architectures():
            for source, defines in VARIANTS:
                yield from resources(source, defines, architecture)


def table(rows: list[Resources]) -> str:
    """Markdown."""
    names = [field.name.replace("_", " ") for field in fields(Resources)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(map(str, astuple(row))) + " |" for row in rows])


if __name__ == "__main__":
    print(f"Compiled with NVRTC {compilation.versions()['nvrtc']}; nothing of this ran on a GPU.\n")
    print(table(list(every_kernel())))
