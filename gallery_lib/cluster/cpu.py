"""CPU share of each host of a lab: a cgroup quota, cores of its own, both, or none.

A host gets a quota where cgroups can be made. It gets cores of its own where each host has whole
ones and there are enough: there it never stalls.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from gallery_lib.cluster.network import tool
from gallery_lib.cluster.state import CpuShare, Host
from gallery_lib.system import hardware

# A fifth of the kernel's usual period: a host that has used up its time stalls for milliseconds,
# not for the length of a training step.
_PERIOD_MICROSECONDS = 20_000


def _parent_cgroup() -> tuple[int, Path] | None:
    """Return a cgroup with a CPU controller in which this user may make others, and its version."""
    top = hardware.CGROUPS
    if os.access(top / "cpu" / "cgroup.procs", os.W_OK):
        return 1, top / "cpu"
    with contextlib.suppress(OSError):
        if "cpu" in (top / "cgroup.subtree_control").read_text().split() and os.access(
            top, os.W_OK
        ):
            return 2, top
    return None


def choose(lab_id: str, hosts: int, cpus: float) -> CpuShare:
    """Return the best CPU share that this machine offers. Nothing is made yet."""
    there, own = sorted(os.sched_getaffinity(0)), int(cpus)
    cores: tuple[tuple[int, ...], ...] = ()
    if float(cpus).is_integer() and own * hosts <= len(there):
        cores = tuple(tuple(there[host * own : (host + 1) * own]) for host in range(hosts))
    version, parent = _parent_cgroup() or (0, None)
    return CpuShare(version, str(parent / f"gallery-lab-{lab_id}") if parent else None, cores)


def make(share: CpuShare, hosts: tuple[Host, ...]) -> CpuShare:
    """Make the lab's cgroups; return the share, without them when the kernel refuses."""
    if share.folder is None:
        return share
    try:
        Path(share.folder).mkdir()
        if share.version == 2:
            Path(share.folder, "cgroup.subtree_control").write_text("+cpu")
        for host in hosts:
            quota = max(1000, round(host.cpus * _PERIOD_MICROSECONDS))
            folder = Path(share.folder, host.name)
            folder.mkdir()
            if share.version == 2:
                (folder / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
                (folder / "cpu.cfs_quota_us").write_text(str(quota))
    except OSError:
        remove(share)
        return dataclasses.replace(share, folder=None)
    return share


def joining(share: CpuShare, host: Host) -> list[str]:
    """Return the words before a command that is to run within the host's share."""
    words = []
    if share.folder is not None:
        join = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
        words += ["/bin/sh", "-c", join, f"{share.folder}/{host.name}"]
    if share.cores:
        words += [tool("taskset"), "-c", ",".join(map(str, share.cores[host.number]))]
    return words


def members(share: CpuShare) -> list[int]:
    """Return the ids of the processes in the lab's cgroups."""
    ids: list[int] = []
    if share.folder is not None:
        for file in Path(share.folder).glob("**/cgroup.procs"):
            with contextlib.suppress(OSError):
                ids += map(int, file.read_text().split())
    return ids


def remove(share: CpuShare) -> bool:
    """Remove the lab's cgroups; return whether they are gone: one with a process in it stays."""
    if share.folder is None:
        return True
    own = Path(share.folder)
    for folder in [*(path for path in own.glob("*") if path.is_dir()), own]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not own.exists()


def shown(share: CpuShare) -> str:
    """Return the share as one line for people."""
    parts = ["a cgroup quota"] * bool(share.folder) + ["cores of their own"] * bool(share.cores)
    return " and ".join(parts) or "none: this user can make no cgroup that controls the CPU"
