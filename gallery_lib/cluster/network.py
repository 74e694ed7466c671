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
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from gallery_lib.cluster import link_rate
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
        tbf, largest = link_rate.tbf(host.rate), link_rate.largest_packet_bytes(host.rate)
        _run(state, host.number, "ip", f"link set {INTERFACE} gso_max_size {largest}")
        _run(state, host.number, "tc", f"qdisc replace dev {INTERFACE} root {tbf}")
        _run(state, _SWITCH, "tc", f"qdisc replace dev port{host.number} root {tbf}")


def set_cut(state: State, host: int, cut: bool) -> None:
    """Cut a host's cable, or mend it."""
    _run(state, _SWITCH, "ip", f"link set port{host} {'down' if cut else 'up'}")
