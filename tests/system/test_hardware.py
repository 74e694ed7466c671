"""What is read of processor, cgroups, GPUs and checkout, from files like those of the kernel."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gallery_lib.system import hardware
from gallery_lib.system.hardware import Gpu

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
ARM = "BogoMIPS\t: 2100.00\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n"
ARM += "CPU architecture: 8\nCPU part\t: 0xd40\n"


@pytest.fixture(autouse=True)
def facts_are_read_anew() -> Iterator[None]:
    hardware.cpu_flags.cache_clear()
    yield
    hardware.cpu_flags.cache_clear()


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
    (tmp_path / "cpuinfo").write_text(facts)
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "cpuinfo")
    assert hardware.processor() == name
    assert hardware.computes_in_bf16("cpu") is in_bf16
    assert hardware.prefers_channels_last("cpu") is channels_last
    hardware.cpu_flags.cache_clear()
    monkeypatch.setattr(hardware, "CPU_FACTS", tmp_path / "none")
    assert hardware.cpu_model() and hardware.cpu_flags() == frozenset()


def machine(folder: Path, kind: str, own: str, root: str, files: dict[str, str]) -> Path:
    """Write a /proc/self and the mounted hierarchy that it names, below `folder`."""
    proc, top = folder / "proc", folder / "mounted"
    proc.mkdir()
    names, options = ("cpu,cpuacct", "rw,cpu,cpuacct") if kind == "cgroup" else ("", "rw")
    (proc / "cgroup").write_text(f"4:memory:/elsewhere\n3:{names}:{own}\n")
    (proc / "mountinfo").write_text(
        f"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        f"32 31 0:29 / {folder}/memory rw,relatime - cgroup cgroup rw,memory\n"
        f"33 31 0:30 {root} {top} rw,relatime shared:9 - {kind} {kind} {options}\n"
    )
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return proc


def of_first(folder: str, quota: str, period: str) -> dict[str, str]:
    return {f"{folder}cpu.cfs_quota_us": quota, f"{folder}cpu.cfs_period_us": period}


UPPER = {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}


@pytest.mark.parametrize(
    ("kind", "own", "root", "files", "quota"),
    [
        ("cgroup2", "/a/b", "/", {**UPPER, "a/b/cpu.max": "150000 100000"}, 1.5),
        ("cgroup2", "/a/b", "/", UPPER, 3.0),  # a cgroup above it counts
        ("cgroup2", "/a", "/", {"a/cpu.max": "max 100000"}, None),
        ("cgroup2", "/", "/", {"cpu.max": "50000 100000"}, 0.5),  # a container
        ("cgroup2", "/", "/", {"cpu.max": "1600000 100000"}, 16.0),  # above the affinity mask
        ("cgroup", "/a", "/", of_first("a/", "40000", "20000"), 2.0),
        ("cgroup", "/a", "/", of_first("a/", "-1", "20000"), None),
        ("cgroup", "/docker/x", "/docker/x", of_first("", "100000", "100000"), 1.0),
        ("cgroup", "/docker/x", "/", of_first("", "100000", "100000"), 1.0),  # its path is hidden
        ("cgroup", "/a", "/", {"a/tasks": ""}, None),
    ],
)
def test_the_least_quota_of_the_own_cgroup_and_those_above_cuts_the_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    own: str,
    root: str,
    files: dict[str, str],
    quota: float | None,
) -> None:
    assert hardware.cpu_quota(machine(tmp_path, kind, own, root, files)) == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5})
    monkeypatch.setattr(hardware, "cpu_quota", lambda: quota)
    assert hardware.cores() == {None: 4, 0.5: 1, 16.0: 4}.get(quota, int(quota or 0))


def test_without_cgroups_there_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.cpu_quota(tmp_path / "nowhere") is None
    monkeypatch.setattr(hardware, "_PROC", tmp_path / "nowhere")
    assert hardware.memory_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_memory_is_cut_by_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"a/memory.max": "max", "memory.max": f"{2**20}\n"}
    monkeypatch.setattr(hardware, "_PROC", machine(tmp_path, "cgroup2", "/a", "/", files))
    assert hardware.memory_bytes() == 2**20


def test_several_kinds_of_gpus_are_counted_and_all_must_have_bf16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixed = (Gpu("A", (9, 0)), Gpu("B", (7, 5)), Gpu("A", (9, 0)))
    monkeypatch.setattr(hardware, "visible_gpus", lambda: mixed)
    assert hardware.gpu_names() == "2 × A + 1 × B"
    assert not hardware.computes_in_bf16("cuda")
    monkeypatch.setattr(hardware, "visible_gpus", lambda: mixed[:1])
    assert hardware.computes_in_bf16("cuda")


def test_a_revision_is_the_commit_and_whether_tracked_files_differ_from_it(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        of = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *words]
        return subprocess.run(of, check=True, capture_output=True, text=True).stdout.strip()

    assert hardware.git_revision(tmp_path) is None
    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-qm", "one")
    git("tag", "-am", "a tag", "v1")
    commit = git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "other").touch()
    assert hardware.git_revision(tmp_path) == commit
    (tmp_path / "file").write_text("two")
    assert hardware.git_revision(tmp_path) == f"{commit}+changes"
