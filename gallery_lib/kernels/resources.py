"""Table of what every kernel needs on every architecture: registers, shared memory, spills.

    python -m gallery_lib.kernels.resources

The command prints the table in Markdown, with the numbers that ptxas reports. No GPU is needed. A
spill is a register that did not fit and went to memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gallery_lib.kernels.catalogue import VARIANTS
from gallery_lib.kernels.runtime import nvrtc

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

_FUNCTION = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for 'sm_(?P<architecture>\d+)\w*'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes "
    r"spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """Resource use of one kernel on one architecture, per thread or per block."""

    source: str
    variant: str
    kernel: str
    architecture: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def resources(source: str, defines: nvrtc.Defines, architecture: int) -> list[Resources]:
    """Return one entry for each kernel of the source.

    Raises what `nvrtc.compiled` raises.
    """
    log = nvrtc.compiled(source, defines, architecture).log
    variant = " ".join(value for _, value in defines)
    rows = []
    for match in _FUNCTION.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        rows.append(
            Resources(
                source,
                variant,
                match["kernel"],
                int(match["architecture"]),
                int(match["registers"]),
                int(shared[1]) if shared else 0,
                int(match["stack"]),
                int(match["stores"]) + int(match["loads"]),
            )
        )
    return rows


def every_kernel() -> Iterator[Resources]:
    """Yield the resources of all variants on all architectures that this NVRTC knows."""
    for architecture in ARCHITECTURES:
        if architecture in nvrtc.supported_architectures():
            for source, defines in VARIANTS:
                yield from resources(source, defines, architecture)


def table(rows: list[Resources]) -> str:
    """Return a Markdown table with a line for each kernel and element type.

    The column of an architecture holds the registers of a thread there.
    """
    architectures = sorted({row.architecture for row in rows})
    header = [
        "source",
        "variant",
        "kernel",
        *(f"sm_{architecture}" for architecture in architectures),
        "shared bytes",
        "spill bytes",
    ]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    kernels: dict[tuple[str, str, str], list[Resources]] = {}
    for row in rows:
        kernels.setdefault((row.source, row.variant, row.kernel), []).append(row)
    for name, kernel_rows in kernels.items():
        registers = {row.architecture: str(row.registers) for row in kernel_rows}
        cells = [
            *(registers.get(architecture, "") for architecture in architectures),
            str(max(row.shared_bytes for row in kernel_rows)),
        ]
        lines.append(
            "| "
            + " | ".join([*name, *cells, str(max(row.spill_bytes for row in kernel_rows))])
            + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(
        "<!-- What own CUDA kernels need, by `python -m gallery_lib.kernels.resources`. -->\n# "
        "Own CUDA kernels\n"
    )
    print(
        "Registers of a thread by architecture; the most shared memory of a block and the most "
        "spills on any of them."
    )
    print(
        f"As reported by ptxas of NVRTC {nvrtc.versions()['nvrtc']}. Compiled only: nothing of "
        "this ran on a GPU.\n"
    )
    print(table(list(every_kernel())))
