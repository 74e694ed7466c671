"""Parts of a lab: its file, its links with their rates and cables, and the hosts' CPU shares."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from refusal import refused
from worker_processes import wait_until

from gallery_lib.cluster import Lab, cpu, keeper, network, state
from gallery_lib.cluster.state import CpuShare, Host, State

HOSTS = tuple(Host(number, f"10.77.0.{number + 1}", 10**9, 0.5) for number in range(2))
LAB = State("mine", "0123abcd", 1.0, HOSTS, CpuShare(cores=((0,), (1,))))


def test_a_lab_is_read_back_and_not_forgotten_with_an_earlier_one_of_its_name() -> None:
    state.write(LAB)
    state.delete(dataclasses.replace(LAB, id="ffffffff"))
    assert state.read("mine") == LAB and state.names() == ["mine"]
    state.delete(LAB)
    assert state.read("mine") is None


def test_what_a_killed_keeper_left_is_cleared() -> None:
    state.write(dataclasses.replace(LAB, keeper=os.getpid()))  # which keeps no lab
    with state.locked():
        assert keeper.clear_leftovers() == ["mine"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "x" * 41])
def test_a_name_that_is_no_name_of_a_file_is_refused(name: str) -> None:
    with refused("name", repr(name)):
        state.read(name)


def test_a_rate_is_a_number_with_its_unit() -> None:
    for text, rate, shown in (
        ("1gbit", 10**9, "1 Gbit/s"),
        ("2.5gbit", 2_500_000_000, "2.5 Gbit/s"),
        ("50Mbit", 5 * 10**7, "50 Mbit/s"),
        ("800 kbit", 800_000, "800 Kbit/s"),
    ):
        assert (network.bits_per_second(text), network.rate_text(rate)) == (rate, shown)


def test_anything_else_is_refused_with_an_example() -> None:
    for hint, texts in (
        ("100mbit", ["", "fast", "100", "1gb", "-1gbit", "1e3mbit", "nangbit"]),
        ("100gbit", ["0mbit", "99kbit", "101gbit"]),
    ):
        for text in texts:
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


def test_hosts_of_whole_cores_keep_to_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 7})
    cores = cpu.choose("id", hosts=3, cpus=1.0).cores
    assert cores == ((2,), (3,), (7,))
    for hosts, cpus in ((2, 1.5), (4, 1.0)):  # not whole, and too many
        assert cpu.choose("id", hosts, cpus).cores == ()
    taskset, *words = cpu.joining(CpuShare(cores=cores), HOSTS[1])
    assert taskset.endswith("taskset") and words == ["-c", "3"]
    assert cpu.joining(CpuShare(2, "/lab"), HOSTS[1])[0] == "/bin/sh"
    shell, *_, group, _, _, core = cpu.joining(CpuShare(2, "/lab", cores), HOSTS[1])
    assert (shell, group, core) == ("/bin/sh", "/lab/host1", "3")


# --------------------------------------------------------------------------------------------------
# The network of a lab: which hosts reach which, at what rate, and over which cables


RECEIVE = """
import socket, time
server = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
connection, _ = server.accept()
began, received = None, 0
while data := connection.recv(1 << 16):
    began = began or time.monotonic()
    received += len(data)
print(received * 8 / (time.monotonic() - began))
"""
SEND = """
import socket, sys
socket.create_connection((sys.argv[1], 5000), timeout=10).sendall(bytes(int(sys.argv[2])))
"""
CONNECT = """
import socket, sys
for target in sys.argv[1:]:
    address, _, port = target.rpartition(":")
    try:
        socket.create_connection((address, int(port)), timeout=2).close()
        print("reached")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""
TICK = """
import socket, time
connection = socket.create_connection(("10.77.0.1", 5001), timeout=10)
while True:
    connection.sendall(b"tick\\n")
    time.sleep(0.02)
"""
HEAR = """
import socket, time
server = socket.create_server(("0.0.0.0", 5001))
print("ready", flush=True)
for line in server.accept()[0].makefile():
    print(time.monotonic(), flush=True)
"""


def python(lab: Lab, host: int, code: str, *arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", code, *arguments]
    return lab.popen(host, words, stdout=subprocess.PIPE, text=True)


def listening(lab: Lab, host: int, code: str) -> subprocess.Popen[str]:
    process = python(lab, host, code)
    assert process.stdout.readline() == "ready\n"
    return process


def bits_per_second(lab: Lab, sender: int, receiver: int, size: int) -> float:
    receiving = listening(lab, receiver, RECEIVE)
    sending = python(lab, sender, SEND, lab.hosts[receiver].address, str(size))
    measured = float(receiving.stdout.read())
    assert (sending.wait(), receiving.wait()) == (0, 0)
    return measured


@pytest.mark.cluster
def test_hosts_reach_each_other_and_nothing_else() -> None:
    with Lab(2) as lab, socket.create_server(("0.0.0.0", 0)) as on_the_machine:
        port = on_the_machine.getsockname()[1]
        listening(lab, 0, HEAR)
        own = [one for card in psutil.net_if_addrs().values() for one in card]
        addresses = [one.address for one in own if one.family == socket.AF_INET]
        elsewhere = [f"{one}:{port}" for one in addresses if not one.startswith("127.")]
        elsewhere.append("192.0.2.1:80")
        tried = python(lab, 1, CONNECT, "10.77.0.1:5001", f"127.0.0.1:{port}", *elsewhere)
        first, loopback, *others = tried.stdout.read().splitlines()
    assert first == "reached"
    assert loopback == "ConnectionRefusedError 111"  # each host has its own
    assert others == ["OSError 101"] * len(elsewhere)  # unreachable


@pytest.mark.cluster
def test_a_transfer_takes_as_long_as_the_rate_says_and_nothing_passes_a_cut_cable() -> None:
    with Lab(2, rate="20mbit") as lab:
        for sender, receiver in ((0, 1), (1, 0)):
            rate = bits_per_second(lab, sender, receiver, 1_000_000)
            assert rate == pytest.approx(20e6, rel=0.25)
        hearing = listening(lab, 0, HEAR)
        python(lab, 1, TICK)
        heard = [float(hearing.stdout.readline())]
        cut_at = time.monotonic()
        lab.cut(1)
        time.sleep(0.5)
        mended_at = time.monotonic()
        lab.mend(1)
        while heard[-1] < mended_at + 0.1:
            heard.append(float(hearing.stdout.readline()))
        on_its_way = 0.2
        assert not [at for at in heard if cut_at + on_its_way < at < mended_at]
        assert bits_per_second(lab, 0, 1, 500_000) == pytest.approx(20e6, rel=0.25)


@pytest.mark.cluster
def test_a_command_is_on_its_host_until_its_supervisor_is_told_to_end_it() -> None:
    with Lab(2) as lab:
        process = lab.popen(1, ["sleep", "60"])
        wait_until(lambda: lab.processes(1))
        assert lab.processes(0) == []
        process.terminate()
        assert process.wait(timeout=10) != 0
        assert lab.processes(1) == []
