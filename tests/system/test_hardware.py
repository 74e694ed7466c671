"""What is read of the processor, on x86 and on ARM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gallery_lib.system import hardware

X86 = """processor\t: 0
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
model name\t: AMD EPYC 9R14
flags\t\t: fpu avx2 avx512f avx512_bf16
"""
OLDER_X86 = X86.replace(" avx512f avx512_bf16", "")
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd sve bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""


@pytest.fixture(autouse=True)
def flags_are_read_anew() -> Iterator[None]:
    hardware.cpu_flags.cache_clear()
    yield
    hardware.cpu_flags.cache_clear()


@pytest.mark.parametrize(
    ("facts", "name", "in_bf16", "channels_last"),
    [
        (X86, "AMD EPYC 9R14 (avx2, avx512f, avx512_bf16)", True, True),
        (OLDER_X86, "AMD EPYC 9R14 (avx2)", False, False),
        (ARM, "ARM 0x41 0xd40 (asimd, sve, bf16)", True, True),
        (
            ARM.replace("sve bf16", "").replace("0xd40", "0xd0c"),
            "ARM 0x41 0xd0c (asimd)",
            False,
            True,
        ),
    ],
    ids=["AVX-512", "AVX2", "ARM with bfloat16", "ARM without"],
)
def test_a_processor_is_named_so_that_another_kind_has_another_name(
    facts: str,
    name: str,
    in_bf16: bool,
    channels_last: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cpuinfo").write_text(facts)
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "cpuinfo")
    assert hardware.processor() == name
    assert hardware.computes_in_bf16("cpu") is in_bf16
    assert hardware.prefers_channels_last("cpu") is channels_last


def test_where_nothing_is_said_of_the_processor_it_still_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "none")
    assert hardware.cpu_model() and hardware.cpu_flags() == frozenset()
