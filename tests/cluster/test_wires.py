"""A lab's network is real: which hosts reach which, at what rate, and over which cables."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gallery_lib.cluster import Lab

pytestmark = pytest.mark.cluster

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


def own_addresses() -> list[str]:
    """Return the machine's own addresses."""
    words = ["ip", "-4", "-oneline", "address"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    addresses = [line.split()[3].partition("/")[0] for line in said.splitlines()]
    return [address for address in addresses if not address.startswith("127.")]


def bits_per_second(lab: Lab, sender: int, receiver: int, size: int) -> float:
    receiving = python(lab, receiver, RECEIVE)
    assert receiving.stdout is not None and receiving.stdout.readline() == "ready\n"
    sending = python(lab, sender, SEND, lab.hosts[receiver].address, str(size))
    measured = float(receiving.stdout.read())
    assert (sending.wait(), receiving.wait()) == (0, 0)
    return measured


def test_hosts_reach_each_other_and_nothing_else() -> None:
    with Lab(2) as lab, socket.create_server(("0.0.0.0", 0)) as on_the_machine:
        port = on_the_machine.getsockname()[1]
        server = python(lab, 0, HEAR)
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        elsewhere = ["192.0.2.1:80", *(f"{address}:{port}" for address in own_addresses())]
        tried = python(lab, 1, CONNECT, "10.77.0.1:5001", f"127.0.0.1:{port}", *elsewhere)
        assert tried.stdout is not None
        first, loopback, *others = tried.stdout.read().splitlines()
    assert first == "reached"
    assert loopback == "ConnectionRefusedError 111"  # each host has its own
    assert others == ["OSError 101"] * len(elsewhere)  # unreachable


def test_a_transfer_takes_as_long_as_the_rate_says_in_either_direction() -> None:
    with Lab(2, rate="50mbit") as lab:
        for sender, receiver in ((0, 1), (1, 0)):
            rate = bits_per_second(lab, sender, receiver, 2_000_000)
            assert rate == pytest.approx(50e6, rel=0.25)


def test_nothing_passes_a_cut_cable_and_all_goes_on_when_it_is_mended() -> None:
    with Lab(2, rate="20mbit") as lab:
        hearing = python(lab, 0, HEAR)
        assert hearing.stdout is not None and hearing.stdout.readline() == "ready\n"
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


def test_a_command_is_among_the_processes_of_its_host_until_its_supervisor_is_told_to_end_it() -> (
    None
):
    with Lab(2) as lab:
        process = lab.popen(1, ["sleep", "60"])
        while not lab.processes(1):
            time.sleep(0.01)
        (pid,) = lab.processes(1)
        while "sleep" not in Path(f"/proc/{pid}/comm").read_text():
            time.sleep(0.01)
        assert lab.processes(0) == []
        process.terminate()
        assert process.wait(timeout=10) != 0
        assert lab.processes(1) == []
