"""How many cores a cgroup of either version lets a process use, from files like the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gallery_lib.system import cgroups, hardware


def machine(folder: Path, *, kind: str, own: str, root: str = "/", files: dict[str, str]) -> Path:
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


@pytest.mark.parametrize(
    ("kind", "own", "root", "files", "quota"),
    [
        ("cgroup2", "/a/b", "/", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 1.5),
        # A cgroup above it counts.
        (
            "cgroup2",
            "/a/b",
            "/",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"},
            3.0,
        ),
        ("cgroup2", "/a", "/", {"a/cpu.max": "max 100000"}, None),
        ("cgroup2", "/", "/", {"cpu.max": "50000 100000"}, 0.5),  # a container
        ("cgroup", "/a", "/", {"a/cpu.cfs_quota_us": "40000", "a/cpu.cfs_period_us": "20000"}, 2.0),
        ("cgroup", "/a", "/", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "20000"}, None),
        (
            "cgroup",
            "/docker/x",
            "/docker/x",
            {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"},
            1.0,
        ),
        # Its own path is hidden.
        (
            "cgroup",
            "/docker/x",
            "/",
            {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"},
            1.0,
        ),
        ("cgroup", "/a", "/", {"a/tasks": ""}, None),
    ],
)
def test_the_least_quota_of_the_own_cgroup_and_those_above(
    tmp_path: Path, kind: str, own: str, root: str, files: dict[str, str], quota: float | None
) -> None:
    assert cgroups.cpu_quota(machine(tmp_path, kind=kind, own=own, root=root, files=files)) == quota


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(tmp_path / "nowhere") is None
    (tmp_path / "cgroup").write_text("")
    (tmp_path / "mountinfo").write_text("")
    assert cgroups.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 4), (0.5, 1), (1.0, 1), (2.9, 2), (16.0, 4)])
def test_cores_are_those_of_the_affinity_mask_cut_by_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5}, raising=False)
    monkeypatch.setattr(hardware.cgroups, "cpu_quota", lambda: quota)
    assert hardware.cores() == cores
