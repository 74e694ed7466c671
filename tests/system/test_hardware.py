"""What is read of processor, cgroups, GPUs and checkout, from files like those of the kernel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gallery_lib.system import hardware
from gallery_lib.system.hardware import Gpu

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
ARM = "BogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n"
ARM += "CPU architecture: 8\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("facts", "name", "in_bf16", "channels_last"),
    [
        (X86, "AMD EPYC 9R14 (avx2, avx512f, avx512_bf16)", True, True),
        (X86.replace(" avx512f avx512_bf16", ""), "AMD EPYC 9R14 (avx2)", False, False),
        (ARM, "ARM 0x41 0xd40 (asimd, sve, bf16)", True, True),
        (ARM.replace("sve bf16", ""), "ARM 0x41 0xd40 (asimd)", False, True),
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
    monkeypatch.setattr(hardware, "cpu_flags", hardware.cpu_flags.__wrapped__)  # not kept
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(facts)
    assert hardware.processor() == name
    assert hardware.computes_in_bf16("cpu") is in_bf16
    assert hardware.prefers_channels_last("cpu") is channels_last


@pytest.mark.parametrize(
    ("files", "quota", "cores"),
    [
        ({"cpu.max": "150000 100000"}, 1.5, 1),
        ({"cpu.max": "50000 100000"}, 0.5, 1),
        ({"cpu.max": "1600000 100000"}, 16.0, 4),  # above the affinity mask
        ({"cpu.max": "max 100000"}, None, 4),
        ({"cpu/cpu.cfs_quota_us": "40000", "cpu/cpu.cfs_period_us": "20000"}, 2.0, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "20000"}, None, 4),
        ({}, None, 4),
    ],
)
def test_the_quota_of_a_container_cuts_the_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    quota: float | None,
    cores: int,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    assert (hardware.cpu_quota(), hardware.cores()) == (quota, cores)


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_of_a_container_is_cut_by_its_limit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for text, limit in (("max", whole), (f"{2**20}\n", 2**20)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        assert hardware.memory_bytes() == limit


def test_several_kinds_of_gpus_are_counted_and_all_must_have_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = (Gpu("A", (9, 0)), Gpu("B", (7, 5)), Gpu("A", (9, 0)))
    monkeypatch.setattr(hardware, "visible_gpus", lambda: mixed)
    assert hardware.gpu_names() == "2 × A + 1 × B" and not hardware.computes_in_bf16("cuda")
    monkeypatch.setattr(hardware, "visible_gpus", lambda: mixed[:1])
    assert hardware.computes_in_bf16("cuda")


def test_a_revision_is_the_commit_and_whether_tracked_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        of = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(of, check=True, capture_output=True, text=True).stdout.strip()

    assert hardware.git_revision(tmp_path) is None
    (tmp_path / "file").write_text("one")
    for words in ("init -q", "add file", "commit -qm one", "tag -am tag v1"):
        git(*words.split())
    commit = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "other").touch()
    assert hardware.git_revision(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert hardware.git_revision(tmp_path) == f"{commit}+changes"
