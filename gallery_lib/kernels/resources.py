"""Table of what every kernel needs on every architecture: registers, shared memory, spills.

    python -m gallery_lib.kernels.resources

The command prints the table in Markdown, with the numbers that ptxas reports. No GPU is needed. A
spill is a register that did not fit and went to memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gallery_lib.kernels.runtime import nvrtc
from gallery_lib.kernels.runtime.launch import ELEMENTS

VARIANTS: tuple[tuple[str, nvrtc.Defines], ...] = tuple(
    (source.name, ELEMENTS[dtype])
    for source in sorted(nvrtc.SOURCES.glob("*.cu"))
    for dtype in ELEMENTS
)
"""Every CUDA source of `cuda/`, with every set of defines that it is compiled with."""

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)\w*'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes "
    r"spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


class Resources(NamedTuple):
    """Resource use of one kernel on one architecture, per thread or per block."""

    kernel: str
    architecture: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def resources(source: str, defines: nvrtc.Defines, architecture: int) -> list[Resources]:
    """Return one entry for each kernel of the source."""
    rows = []
    for match in _FUNCTION.finditer(nvrtc.compiled(source, defines, architecture).log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        numbers = (int(match["registers"]), int(shared[1]) if shared else 0, int(match["stack"]))
        spill = int(match["stores"]) + int(match["loads"])
        rows.append(Resources(match["kernel"], int(match["architecture"]), *numbers, spill))
    return rows


def table() -> str:
    """Return a Markdown table with a line for each kernel and element type.

    The column of an architecture holds the registers of a thread there.
    """
    known = [each for each in ARCHITECTURES if each in nvrtc.supported_architectures()]
    header = ["source", "variant", "kernel", *(f"sm_{each}" for each in known)]
    header += ["shared bytes", "spill bytes"]
    lines = [header]
    for source, defines in VARIANTS:
        by_kernel: dict[str, list[Resources]] = {}
        for architecture in known:
            for row in resources(source, defines, architecture):
                by_kernel.setdefault(row.kernel, []).append(row)
        for kernel, rows in by_kernel.items():
            most = (max(row.shared_bytes for row in rows), max(row.spill_bytes for row in rows))
            numbers = [*(row.registers for row in rows), *most]
            lines.append([source, defines[0][1], kernel, *map(str, numbers)])
    first, *rest = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([first, "|" + "---|" * len(header), *rest])


if __name__ == "__main__":
    print(
        "<!-- What own CUDA kernels need, by `python -m gallery_lib.kernels.resources`. -->\n"
        "# Own CUDA kernels\n\n"
        "Registers of a thread by architecture; the most shared memory of a block and the most "
        "spills on any of them.\n"
        f"As reported by ptxas of NVRTC {nvrtc.versions()['nvrtc']}. Compiled only: nothing of "
        f"this ran on a GPU.\n\n{table()}"
    )
