"""Network of a lab: namespaces, a bridge, and a veth pair from each host to it, shaped at its ends.

The keeper makes the namespaces and holds them as open files, so that they need no name on the
machine. Without the rights for that it first makes a user namespace, in which it has them. A host's
card shapes what it sends, the bridge's end of the pair what it receives. Hosts have no route but to
each other. A cable is cut at the bridge: the host keeps its address and sees a dead line.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from gallery_lib.cluster.state import State
from gallery_lib.errors import InputError

INTERFACE = "eth0"
_SWITCH = -1  # in place of a host's number: the namespace of the bridge, the keeper's own
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_FIRST_DESCRIPTOR = 100


# --------------------------------------------------------------------------------------------------
# Requirements


_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "taskset": "util-linux"}
_SYSTEM_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin"  # not on every user's PATH

NEEDED = (
    "Needed: root (in a container: one that was started with --privileged, or with "
    "--cap-add=SYS_ADMIN, --cap-add=NET_ADMIN and --security-opt seccomp=unconfined), or user "
    "namespaces for everyone: sysctl -w user.max_user_namespaces=10000 and, where there are such "
    "settings, kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0."
)


class LabUnavailable(InputError):
    """This machine cannot have a lab: the message says what it needs, and nothing was left."""


def tool(name: str) -> str:
    """Return the path of a command; raise LabUnavailable with its package where it is missing."""
    path = shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS)
    if path is None:
        raise LabUnavailable(
            f"a lab needs the command `{name}`, which is not here: "
            f"apt-get install {_PACKAGES[name]}",
            parameter=name,
        )
    return path


def check() -> None:
    """Raise LabUnavailable when a command is missing."""
    for name in _PACKAGES:
        tool(name)


def no_namespaces(number: int) -> LabUnavailable:
    """Return the error for a kernel that refused to make a namespace with errno `number`."""
    reason = f"the kernel lets this user make no network namespaces ({os.strerror(number)})."
    if number == errno.ENOSPC:
        reason += " Its limits are user.max_net_namespaces and user.max_user_namespaces."
    return LabUnavailable(f"{reason} {NEEDED}")


# --------------------------------------------------------------------------------------------------
# Namespaces


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make_namespaces(hosts: int) -> bool:
    """Make the namespaces of `hosts` hosts and of the switch, for this process to keep.

    Return whether a user namespace was needed, in which this process is root.

    Raises:
        OSError: where the kernel refuses.
    """
    user_namespace = False
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        _unshare(_CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        user_namespace = True
    for host in range(hosts):
        _unshare(_CLONE_NEWNET)
        opened = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.dup2(opened, _FIRST_DESCRIPTOR + host, inheritable=False)
        os.close(opened)
    _unshare(_CLONE_NEWNET)
    return user_namespace


def _path(state: State, host: int) -> str:
    inside = "ns/net" if host == _SWITCH else f"fd/{_FIRST_DESCRIPTOR + host}"
    return f"/proc/{state.keeper}/{inside}"


def entering(state: State, host: int) -> list[str]:
    """Return the words before a command that is to run in a host's namespace."""
    words = [tool("nsenter"), f"--net={_path(state, host)}"]
    if state.user_namespace:
        words += [f"--user=/proc/{state.keeper}/ns/user", "--preserve-credentials"]
    return words


def processes() -> dict[int, list[int]]:
    """Return the processes that this user may look at, by the inode of their network namespace."""
    ids_by_inode: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            ids_by_inode[(folder / "ns" / "net").stat().st_ino].append(int(folder.name))
    return ids_by_inode


def in_host(state: State, host: int) -> list[int]:
    """Return the processes in a host."""
    return sorted(processes().get(Path(_path(state, host)).stat().st_ino, []))


def have_mark(pids: Iterable[int], mark: str) -> bool:
    """Return whether the first of these processes that still exists is in the lab with `mark`."""
    for pid in pids:
        with contextlib.suppress(OSError):
            devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
            return any(line.partition(":")[0].strip() == mark for line in devices)
    return False


# --------------------------------------------------------------------------------------------------
# Rates of links
#
# Shaping is a token bucket (tc's tbf). Its *burst* is the bytes that pass at once after a pause. It
# must hold what the rate brings between two runs of the kernel's timer, or the rate is not reached
# on a busy machine; beyond that it makes short messages too fast. We take a millisecond of the
# rate, and at least ten packets. The kernel hands packets of up to 64 KiB to a card, and tbf cuts
# those that the burst does not hold, which costs a part of the rate. So such packets are made
# smaller on slow links. Its *latency* is the longest wait of a packet in the queue before it is
# dropped: 50 ms, the buffer of a generous switch.

_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SLOWEST, _FASTEST = 10**5, 10**11
_LATENCY_MILLISECONDS = 50
_BURST_SECONDS = 1e-3
_SMALLEST_BURST_BYTES = 16384
_LARGEST_PACKET_BYTES = 65536


def bits_per_second(text: str) -> int:
    """Return the rate that a text like `1gbit` or `2.5mbit` stands for, in bits per second.

    Raises:
        InputError: for anything else, and for rates outside 100kbit to 100gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)", str(text).lower(), re.ASCII)
    if not match:
        raise InputError(
            f"rate={text!r} must be a number with kbit, mbit or gbit behind it, "
            "in bits per second: 100mbit, say.",
            parameter="rate",
        )
    rate = round(float(match[1]) * _UNITS[match[2]])
    if not _SLOWEST <= rate <= _FASTEST:
        raise InputError(f"rate={text!r} must be between 100kbit and 100gbit.", parameter="rate")
    return rate


def rate_text(rate: int) -> str:
    """Return a rate in bits per second as text, for instance `1 Gbit/s`."""
    unit = max((unit for unit in _UNITS if _UNITS[unit] <= rate), key=_UNITS.__getitem__)
    return f"{rate / _UNITS[unit]:g} {unit.capitalize()}/s"


def burst_bytes(rate: int) -> int:
    """Return the token bucket's size for a link of `rate` bits per second."""
    return max(round(rate / 8 * _BURST_SECONDS), _SMALLEST_BURST_BYTES)


def largest_packet_bytes(rate: int) -> int:
    """Return the largest packet that the kernel may hand to a card of `rate` bits per second."""
    return min(_LARGEST_PACKET_BYTES, burst_bytes(rate) * 9 // 10)


def tbf(rate: int) -> str:
    """Return tc's words for a queue of `rate` bits per second."""
    return f"tbf rate {rate}bit burst {burst_bytes(rate)}b latency {_LATENCY_MILLISECONDS}ms"


# --------------------------------------------------------------------------------------------------
# Wires


def address(host: int) -> str:
    """Return the address of a host. Every lab uses the same ones: labs do not see each other."""
    return f"10.77.0.{host + 1}"


def _run(state: State, host: int, command: str, *lines: str) -> None:
    """Run lines of `ip` or `tc` in one namespace; LabUnavailable with what the kernel refused."""
    done = subprocess.run(
        [*entering(state, host), tool(command), "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
    )
    if done.returncode:
        message = " ".join(done.stderr.split())
        needed = f" {NEEDED}" if "not permitted" in message else ""
        raise LabUnavailable(f"`{command} {'; '.join(lines)}` said: {message}{needed}")


def make(state: State) -> None:
    """Make bridge, cards, addresses and rates of a lab whose namespaces exist."""
    bridge = [
        f"link add name {state.mark} type bridge",
        f"link set {state.mark} addrgenmode none",
        f"link set {state.mark} up",
    ]
    for host in state.hosts:
        port, inside = f"port{host.number}", _path(state, host.number)
        bridge += [
            f"link add name {port} type veth peer name {INTERFACE} netns {inside}",
            f"link set {port} addrgenmode none",
            f"link set {port} master {state.mark} up",
        ]
    _run(state, _SWITCH, "ip", *bridge)
    for host in state.hosts:
        card = [
            f"link add name {state.mark} type bridge",  # the mark alone: it stays down
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",
            f"address add {host.address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        _run(state, host.number, "ip", *card)
        # A card shapes what its host sends, the bridge's end of the cable what the host receives.
        queue, largest = tbf(host.rate), largest_packet_bytes(host.rate)
        _run(state, host.number, "ip", f"link set {INTERFACE} gso_max_size {largest}")
        _run(state, host.number, "tc", f"qdisc replace dev {INTERFACE} root {queue}")
        _run(state, _SWITCH, "tc", f"qdisc replace dev port{host.number} root {queue}")


def set_cut(state: State, host: int, cut: bool) -> None:
    """Cut a host's cable, or mend it."""
    _run(state, _SWITCH, "ip", f"link set port{host} {'down' if cut else 'up'}")
