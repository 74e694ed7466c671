"""CPU share of each host of a lab: a cgroup quota, cores of its own, both, or none and the reason.

A host gets a quota where cgroups can be made. It gets cores of its own where each host has whole
ones and there are enough: there it never stalls.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gallery_lib.cluster.requirements import tool
from gallery_lib.cluster.state import CpuShare, Host
from gallery_lib.system import hardware

LEAST_CPUS = 0.05
"""Smallest CPU share of a host: the kernel takes quotas of a millisecond and more."""
# A fifth of the kernel's usual period: a host that has used up its time stalls for milliseconds,
# not for the length of a training step.
_PERIOD_MICROSECONDS = 20_000


def _parent_cgroup() -> tuple[str, Path] | None:
    """Return a cgroup with a CPU controller in which this user may make others, and its version."""
    first = hardware.own_cgroup("cgroup")
    if first and os.access(first[0], os.W_OK):
        return "cgroup v1", first[0]
    second, top = hardware.own_cgroup("cgroup2") or (None, None)
    while second and (control := second / "cgroup.subtree_control").is_file():
        if "cpu" in control.read_text().split() and os.access(second, os.W_OK):
            return "cgroup v2", second
        second = None if second == top else second.parent
    return None


def choose(lab_id: str, hosts: int, cpus: float) -> CpuShare:
    """Return the best CPU share that this machine offers. Nothing is made yet."""
    if parent := _parent_cgroup():
        own = _cores_by_host(hosts, int(cpus)) if float(cpus).is_integer() else ()
        return CpuShare(parent[0], str(parent[1] / f"gallery-lab-{lab_id}"), cores=own)  # type: ignore[arg-type]
    return _cores(hosts, cpus, "this user can make no cgroup that controls the CPU")


def _cores_by_host(hosts: int, per_host: int) -> tuple[tuple[int, ...], ...]:
    cores = sorted(os.sched_getaffinity(0))
    if per_host * hosts > len(cores):
        return ()
    return tuple(tuple(cores[host * per_host : (host + 1) * per_host]) for host in range(hosts))


def _cores(hosts: int, cpus: float, reason: str) -> CpuShare:
    per_host = max(1, round(cpus))
    if cores := _cores_by_host(hosts, per_host):
        return CpuShare("cores", cores=cores, reason=reason)
    there = len(os.sched_getaffinity(0))
    too_few = f"{there} core(s) are too few to give {per_host} to each of {hosts} hosts"
    return CpuShare("none", reason=f"{reason}, and {too_few}")


def default_cpus(hosts: int) -> float:
    """Return the default cores for each host: an equal part of all."""
    return max(LEAST_CPUS, hardware.cores() / hosts)


def _host_folder(share: CpuShare, host: int) -> Path:
    assert share.folder is not None
    return Path(share.folder) / f"host{host}"


def set_quota(share: CpuShare, host: int, cpus: float) -> None:
    """Limit a host of a lab with cgroups to `cpus` cores' worth of time."""
    quota = max(1000, round(cpus * _PERIOD_MICROSECONDS))
    folder = _host_folder(share, host)
    if share.kind == "cgroup v2":
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))


def make(share: CpuShare, hosts: tuple[Host, ...]) -> CpuShare:
    """Make the lab's cgroups; return the share, or the next best when the kernel refuses."""
    if share.folder is None:
        return share
    try:
        Path(share.folder).mkdir()
        if share.kind == "cgroup v2":
            Path(share.folder, "cgroup.subtree_control").write_text("+cpu")
        for host in hosts:
            _host_folder(share, host.number).mkdir()
            set_quota(share, host.number, host.cpus)
    except OSError as error:
        remove(share)
        reason = f"a cgroup with a quota could not be made ({error})"
        return _cores(len(hosts), hosts[0].cpus, reason)
    return share


def joining(share: CpuShare, host: int) -> list[str]:
    """Return the words before a command that is to run within the host's share."""
    words = []
    if share.folder is not None:
        join = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
        words += ["/bin/sh", "-c", join, str(_host_folder(share, host))]
    if share.cores:
        words += [tool("taskset"), "-c", ",".join(map(str, share.cores[host]))]
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
    if share.kind == "none":
        return f"none: {share.reason}"
    if share.kind == "cores":
        return f"cores of their own ({share.reason})"
    return f"{share.kind} quota" + (", and cores of their own" if share.cores else "")
