"""Parts of a lab without a lab: its file, the rates of its links, and the hosts' CPU shares."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.cluster import cpu, keeper, network, state
from gallery_lib.cluster.state import CpuShare, Host, State

HOSTS = tuple(Host(number, f"10.77.0.{number + 1}", 10**9, 0.5) for number in range(2))
LAB = State("mine", "0123abcd", 1.0, HOSTS, CpuShare(cores=((0,), (1,))))


def test_a_lab_is_read_back_and_not_forgotten_with_an_earlier_one_of_its_name() -> None:
    state.write(LAB)
    assert state.read("mine") == LAB
    later = dataclasses.replace(LAB, id="ffffffff")
    state.write(later)
    state.delete(LAB)
    assert state.read("mine") == later and state.names() == ["mine"]
    state.delete(later)
    assert state.read("mine") is None


def test_what_a_killed_keeper_left_is_cleared() -> None:
    state.write(dataclasses.replace(LAB, keeper=1))  # a process that is there, but keeps no lab
    with state.locked():
        assert keeper.clear_leftovers() == ["mine"]
    assert [path.name for path in state.folder().iterdir()] == [".lock"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "x" * 41])
def test_a_name_that_is_no_name_of_a_file_is_refused(name: str) -> None:
    with refused("name", repr(name)):
        state.read(name)


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        ("1gbit", 10**9, "1 Gbit/s"),
        ("2.5gbit", 2_500_000_000, "2.5 Gbit/s"),
        ("50Mbit", 5 * 10**7, "50 Mbit/s"),
        ("800 kbit", 800_000, "800 Kbit/s"),
    ],
)
def test_a_rate_is_a_number_with_its_unit(text: str, rate: int, shown: str) -> None:
    assert network.bits_per_second(text) == rate
    assert network.rate_text(rate) == shown


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        *((text, "100mbit") for text in ("", "fast", "100", "1gb", "-1gbit", "1e3mbit", "nangbit")),
        *((text, "100gbit") for text in ("0mbit", "99kbit", "101gbit")),
    ],
)
def test_anything_else_is_refused_with_an_example(text: str, hint: str) -> None:
    with refused("rate", repr(text), hint):
        network.bits_per_second(text)


@pytest.mark.parametrize("rate", [10**5, 10**7, 10**8, 5 * 10**8, 10**9, 10**10])
def test_no_packet_is_larger_than_the_burst_of_a_millisecond_or_ten_packets(rate: int) -> None:
    assert network.burst_bytes(rate) >= max(rate / 8000, 10 * 1514)
    assert 10_000 < network.largest_packet_bytes(rate) < network.burst_bytes(rate)
    assert network.largest_packet_bytes(rate) <= 2**16


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (1, {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}),
        (2, {"cpu.max": "10000 20000"}),
    ],
)
def test_a_quota_is_written_as_the_kernel_reads_it(
    tmp_path: Path, version: int, files: dict[str, str]
) -> None:
    share = CpuShare(version, str(tmp_path / "lab"))
    assert cpu.make(share, HOSTS) == share
    for host in ("host0", "host1"):
        written = {path.name: path.read_text() for path in (tmp_path / "lab" / host).iterdir()}
        assert written == files


def test_where_the_kernel_refuses_a_cgroup_hosts_have_their_cores_or_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    for cores, said in ((((0,), (1,)), "cores of their own"), ((), "none: this user can make no")):
        share = cpu.make(CpuShare(1, str(tmp_path / "file" / "lab"), cores), HOSTS)
        assert share == CpuShare(1, None, cores) and cpu.shown(share).startswith(said)


def test_hosts_of_whole_cores_keep_to_their_own_besides_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_parent_cgroup", lambda: (2, tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 7})
    share = cpu.choose("id", hosts=3, cpus=1.0)
    assert share.cores == ((2,), (3,), (7,))
    words = cpu.joining(share, HOSTS[1])
    assert words[0] == "/bin/sh" and words[-2:] == ["-c", "3"] and words[-3].endswith("taskset")
    for hosts, cpus in ((2, 1.5), (4, 1.0)):  # not whole, and too many
        share = cpu.choose("id", hosts, cpus)
        assert share.cores == () and cpu.shown(share) == "a cgroup quota"
        assert "taskset" not in " ".join(cpu.joining(share, HOSTS[1]))
