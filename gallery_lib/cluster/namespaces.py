"""Network namespaces of a lab: how they are made, entered and inspected.

The keeper makes them and holds them as open files, so that they need no name on the machine.
Without the rights for that it first makes a user namespace, in which it has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from gallery_lib.cluster.requirements import tool
from gallery_lib.cluster.state import State

SWITCH = -1
"""Number in place of a host's: the namespace of the bridge, which is the keeper's own."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_FIRST_DESCRIPTOR = 100


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def make(hosts: int) -> bool:
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


def path(state: State, host: int) -> str:
    """Return the file of a host's namespace, or of the switch's."""
    return (
        f"/proc/{state.keeper}/ns/net"
        if host == SWITCH
        else f"/proc/{state.keeper}/fd/{_FIRST_DESCRIPTOR + host}"
    )


def entering(state: State, host: int) -> list[str]:
    """Return the words before a command that is to run in that namespace."""
    words = [tool("nsenter"), f"--net={path(state, host)}"]
    return (
        [*words, f"--user=/proc/{state.keeper}/ns/user", "--preserve-credentials"]
        if state.user_namespace
        else words
    )


def processes() -> dict[int, list[int]]:
    """Return process ids by the inode of their network namespace.

    Only processes that this user may look at are among them.
    """
    ids_by_inode: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                ids_by_inode[(folder / "ns" / "net").stat().st_ino].append(int(folder.name))
    return ids_by_inode


def in_host(state: State, host: int, known: dict[int, list[int]] | None = None) -> list[int]:
    """Return the processes in a host, chosen from `known` (default: looked up now)."""
    return sorted(
        (processes() if known is None else known).get(Path(path(state, host)).stat().st_ino, [])
    )


def have_mark(pids: Iterable[int], mark: str) -> bool:
    """Return whether processes of one namespace are in the lab with that mark.

    The first process that still exists decides; if none does, the result is False.
    """
    for pid in pids:
        with contextlib.suppress(OSError):
            devices = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
            return any(line.partition(":")[0].strip() == mark for line in devices)
    return False
