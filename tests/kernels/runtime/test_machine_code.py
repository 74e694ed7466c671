"""What ptxas made of the kernels for sm_90: how many blocks fit, and how long the loops are.

Memory should be the limit of every loop. A multiprocessor issues 4 instructions of a warp a clock,
so an H200 (132 of them, 1.76 GHz, 4.3 TB/s) has 110 of them for 16 bytes of each thread.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from gallery_lib.kernels.runtime.launch import ELEMENTS, THREADS
from gallery_lib.kernels.runtime.nvrtc import SOURCES, compiled

pytestmark = pytest.mark.slow
BOUNDS = {
    "accumulate_int8": (6, None),
    "adamw": (4, 55),
    "advance": (8, None),
    "batch_norm_combine": (4, None),
    "batch_norm_input": (4, 45),
    "batch_norm_moments": (4, 80),
    "batch_norm_relu": (4, 30),
    "batch_norm_sums": (4, 55),
    "batch_norm_totals": (4, None),
    "cross_entropy_gradient": (6, 45),
    "cross_entropy_rows": (6, 85),
    "finish_norm": (4, None),
    "lamb_moments": (4, 75),
    "lamb_trust_ratios": (4, None),
    "lamb_update": (4, 70),
    "pack_int8": (5, None),
    "prepare_images": (6, None),
    "radam": (4, 60),
    "rmsprop": (3, 45),
    "sgd": (4, 30),
    "sum_squares": (8, 125),  # of which a value takes one branch of three
}
"""Kernel → blocks on a multiprocessor, at least, and instructions for 16 bytes, at most.

None: no loop reads 16 bytes at once.
"""
VARIANTS = list(itertools.product(sorted(p.name for p in SOURCES.glob("*.cu")), ELEMENTS))
REGISTERS = re.compile(r"entry function '(\w+)'.*?Used (\d+) registers", re.DOTALL)
INSTRUCTION = re.compile(r"\s+/\*\w{4,}\*/ +(?:@!?U?P\w+ )? *(\w[\w.]*)")
TARGET = re.compile(r"BRA .*`\((\.L_x_\d+)\)")
BYTES = {"128": 16, "64": 8, "U16": 2, "U8": 1}


@pytest.mark.parametrize(("source", "dtype"), VARIANTS)
def test_as_many_blocks_fit_a_multiprocessor_as_hide_the_latency_of_memory(source, dtype):
    for kernel, registers in REGISTERS.findall(compiled(source, ELEMENTS[dtype], 90).log):
        # in groups of 8 for each thread
        blocks = min(2048 // THREADS, 65536 // (-(-int(registers) // 8) * 8 * THREADS))
        assert blocks >= BOUNDS[kernel][0], f"{kernel}: {registers} registers, {blocks} blocks"


@pytest.mark.parametrize(("source", "dtype"), VARIANTS)
def test_no_loop_has_more_instructions_than_memory_leaves_time_for(source, dtype, tmp_path):
    disassembler = nvdisasm()
    if disassembler is None:
        pytest.skip("needs nvdisasm, of the CUDA toolkit or in Triton's wheel: there is none")
    cubin = tmp_path / "kernels.cubin"
    cubin.write_bytes(compiled(source, ELEMENTS[dtype], 90).cubin)
    text = subprocess.run([disassembler, "-c", cubin], capture_output=True, check=True, text=True)
    seen = set()
    for kernel, opcodes in loops(text.stdout):
        if any(opcode.startswith("LDG.E.128") for opcode in opcodes):
            instructions = 16 * len(opcodes) / bytes_moved(opcodes)
            assert instructions <= (BOUNDS[kernel][1] or 0), f"{kernel}: {instructions:.1f}"
            seen.add(kernel)
    found = set(re.findall(r"\n\.text\.(\w+):", text.stdout))
    assert seen == {kernel for kernel in found if BOUNDS[kernel][1]}


def loops(disassembly: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the kernel and the opcodes of each loop."""
    for section in disassembly.split("\n.text.")[1:]:
        labels: dict[str, int] = {}
        opcodes: list[str] = []
        for line in section.splitlines():
            if found := INSTRUCTION.match(line):
                opcodes.append(found[1])
                if (target := TARGET.search(line)) and target[1] in labels:
                    yield section.split(":")[0], opcodes[labels[target[1]] :]
            elif line.startswith(".L_x_"):
                labels[line.rstrip(":")] = len(opcodes)


def bytes_moved(opcodes: list[str]) -> int:
    """Return the bytes that a thread reads from memory and writes to it in a pass of a loop."""
    moves = [opcode.split(".") for opcode in opcodes if opcode.startswith(("LDG", "STG"))]
    return sum(next((BYTES[part] for part in move if part in BYTES), 4) for move in moves)


def nvdisasm() -> str | None:
    """Return the path of the toolkit's disassembler, or of the one that Triton brings."""
    triton = find_spec("triton")
    places = (triton and triton.submodule_search_locations) or ()
    paths = [None, *(str(Path(place, "backends/nvidia/bin")) for place in places)]
    return next((found for path in paths if (found := shutil.which("nvdisasm", path=path))), None)
