"""Which ranks share a host, and what is refused before anything is sent."""

from __future__ import annotations

from gallery_lib.comm.topology import Topology


def test_local_ranks_and_peers() -> None:
    hosts = Topology(((0, 2), (1, 3), (4, 5)))
    assert hosts.local(3) == (1, 3)
    assert hosts.peers(3) == (2, 3, 5)
    assert hosts.uniform
    assert str(hosts) == "3 hosts × 2 processes"


def test_hosts_of_different_sizes() -> None:
    hosts = Topology(((0,), (1, 2)))
    assert not hosts.uniform
    assert str(hosts) == "hosts of 1, 2 processes"
