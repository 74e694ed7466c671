"""Wires of a lab: a bridge, and a veth pair from each host to it, shaped at both ends.

A host's card shapes what it sends, the bridge's end of the pair what it receives. Hosts have no
route but to each other. A cable is cut at the bridge. So the host keeps its address and sees a dead
line, as it would with a real cable.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from gallery_lib.cluster import link_rate, namespaces
from gallery_lib.cluster.namespaces import SWITCH
from gallery_lib.cluster.requirements import NEEDED, LabUnavailable, tool
from gallery_lib.cluster.state import State

INTERFACE = "eth0"


def address(host: int) -> str:
    """Return the address of a host. Every lab uses the same ones: labs do not see each other."""
    return f"10.77.0.{host + 1}"


def _run(state: State, host: int, command: str, lines: Sequence[str]) -> None:
    """Run lines of `ip` or `tc` in one namespace.

    Raises:
        LabUnavailable: with the output.
    """
    entering = namespaces.entering(state, host)
    done = subprocess.run(
        [*entering, tool(command), "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        message = " ".join(done.stderr.split())
        number = re.search(r"-:(\d+)", message)
        words = f"{command} {lines[int(number[1]) - 1]}" if number else command
        needed = f" {NEEDED}" if "not permitted" in message else ""
        raise LabUnavailable(
            f"the kernel refused a part of the lab's network; `{words}` said: {message}{needed}"
        )


def _packets(bits_per_second: int) -> str:
    return f"link set {INTERFACE} gso_max_size {link_rate.largest_packet_bytes(bits_per_second)}"


def make(state: State) -> None:
    """Make bridge, cards, addresses and rates of a lab whose namespaces exist."""
    bridge = [
        f"link add name {state.mark} type bridge",
        f"link set {state.mark} addrgenmode none",
        f"link set {state.mark} up",
    ]
    for host in state.hosts:
        port = f"port{host.number}"
        bridge += [
            f"link add name {port} type veth peer name {INTERFACE} netns "
            f"{namespaces.path(state, host.number)}",
            f"link set {port} addrgenmode none",
            f"link set {port} master {state.mark} up",
        ]
    _run(state, SWITCH, "ip", bridge)
    for host in state.hosts:
        card = [
            f"link add name {state.mark} type bridge",  # the mark alone: it stays down
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",
            _packets(host.rate),
            f"address add {host.address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        _run(state, host.number, "ip", card)
        _run(
            state,
            host.number,
            "tc",
            [f"qdisc replace dev {INTERFACE} root {link_rate.tbf(host.rate)}"],
        )
    _run(
        state,
        SWITCH,
        "tc",
        [
            f"qdisc replace dev port{host.number} root {link_rate.tbf(host.rate)}"
            for host in state.hosts
        ],
    )


def set_rate(state: State, host: int, bits_per_second: int) -> None:
    """Set another rate for a host, in both directions."""
    _run(state, host, "ip", [_packets(bits_per_second)])
    _run(
        state, host, "tc", [f"qdisc replace dev {INTERFACE} root {link_rate.tbf(bits_per_second)}"]
    )
    _run(
        state, SWITCH, "tc", [f"qdisc replace dev port{host} root {link_rate.tbf(bits_per_second)}"]
    )


def set_cut(state: State, host: int, cut: bool) -> None:
    """Cut a host's cable, or mend it."""
    _run(state, SWITCH, "ip", [f"link set port{host} {'down' if cut else 'up'}"])
