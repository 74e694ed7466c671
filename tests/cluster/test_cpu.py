"""A host's share of the CPU: how it is chosen and written, without making a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gallery_lib.cluster import cpu
from gallery_lib.cluster.state import CpuShare, Host

HOSTS = tuple(Host(number, f"10.77.0.{number + 1}", 10**9, 0.5) for number in range(2))


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("cgroup v1", {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}),
        ("cgroup v2", {"cpu.max": "10000 20000"}),
    ],
)
def test_a_quota_is_written_as_the_kernel_reads_it(
    tmp_path: Path, kind: str, files: dict[str, str]
) -> None:
    share = CpuShare(kind, str(tmp_path / "lab"))  # type: ignore[arg-type]
    assert cpu.make(share, HOSTS) == share
    for host in ("host0", "host1"):
        assert {
            path.name: path.read_text() for path in (tmp_path / "lab" / host).iterdir()
        } == files
    cpu.set_quota(share, 1, 0.1)
    assert "2000" in (tmp_path / "lab/host1" / list(files)[-1]).read_text().split()


def test_where_the_kernel_refuses_a_cgroup_hosts_get_cores_or_nothing_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    refused = CpuShare("cgroup v1", str(tmp_path / "file" / "lab"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 7})
    assert cpu.make(refused, HOSTS).cores == ((2,), (3,))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7})
    none = cpu.make(refused, HOSTS)
    assert none.kind == "none"
    assert "1 core(s) are too few to give 1 to each of 2 hosts" in cpu.shown(none)
    assert "a cgroup with a quota could not be made" in cpu.shown(none)


def test_hosts_of_whole_cores_keep_to_their_own_besides_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_parent_cgroup", lambda: ("cgroup v2", tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 7})
    share = cpu.choose("id", hosts=3, cpus=1.0)
    assert (
        share.cores == ((2,), (3,), (7,))
        and cpu.shown(share) == "cgroup v2 quota, and cores of their own"
    )
    words = cpu.joining(share, 1)
    assert words[0] == "/bin/sh" and words[-2:] == ["-c", "3"] and words[-3].endswith("taskset")
    for hosts, cpus in ((2, 1.5), (4, 1.0)):  # not whole, and too many
        share = cpu.choose("id", hosts, cpus)
        assert share.cores == () and cpu.shown(share) == "cgroup v2 quota"
        assert cpu.joining(share, 1)[0] == "/bin/sh" and "taskset" not in " ".join(
            cpu.joining(share, 1)
        )


def test_the_default_is_an_equal_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gallery_lib.system.hardware.cores", lambda: 6)
    assert cpu.default_cpus(4) == 1.5
    assert cpu.default_cpus(1000) == cpu.LEAST_CPUS
