"""CPU share of each host of a lab: a cgroup quota, cores of its own, both, or none and the reason.

A host gets a quota where cgroups can be made. It gets cores of its own where each host has whole
ones and there are enough.

The quota's period is 20 ms, a fifth of the kernel's usual one. A host that has used up its time
stalls for milliseconds, not for the length of a training step. On cores of its own a host never
stalls. Without them, a host of one core whose threads all run at once on two uses up its time in
half of each period. In the other half it neither computes nor receives.
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

_PERIOD_MICROSECONDS = 20_000


def _parent_cgroup() -> tuple[str, Path] | None:
    """Return a cgroup with a CPU controller in which this user may make others, and its version.

    No setting of the cgroup is changed.
    """
    first = hardware.own_cgroup("cgroup")
    if first and os.access(first[0], os.W_OK):
        return "cgroup v1", first[0]
    second, top = hardware.own_cgroup("cgroup2") or (None, None)
    while second and (second / "cgroup.subtree_control").is_file():
        if "cpu" in (second / "cgroup.subtree_control").read_text().split() and os.access(
            second, os.W_OK
        ):
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
    """Return the numbers of each host's cores; an empty tuple where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    if per_host * hosts > len(cores):
        return ()
    return tuple(tuple(cores[host * per_host : (host + 1) * per_host]) for host in range(hosts))


def _cores(hosts: int, cpus: float, reason: str) -> CpuShare:
    per_host = max(1, round(cpus))
    if cores := _cores_by_host(hosts, per_host):
        return CpuShare("cores", cores=cores, reason=reason)
    there = len(os.sched_getaffinity(0))
    return CpuShare(
        "none",
        reason=f"{reason}, and {there} core(s) are too few to give {per_host} to each of {hosts} "
        "hosts",
    )


def default_cpus(hosts: int) -> float:
    """Return the default cores for each host: an equal part of all."""
    return max(LEAST_CPUS, hardware.cores() / hosts)


def _host_folder(share: CpuShare, host: int) -> Path:
    assert share.folder is not None
    return Path(share.folder) / f"host{host}"


def set_quota(share: CpuShare, host: int, cpus: float) -> None:
    """Limit a host to `cpus` cores' worth of time; the lab must have cgroups.

    Raises:
        OSError: where the kernel refuses.
    """
    quota = max(1000, round(cpus * _PERIOD_MICROSECONDS))
    folder = _host_folder(share, host)
    if share.kind == "cgroup v2":
        (folder / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
    (folder / "cpu.cfs_quota_us").write_text(str(quota))


def make(share: CpuShare, hosts: tuple[Host, ...]) -> CpuShare:
    """Make the lab's cgroups; return the share, or the next best when the kernel refuses.

    The lab's own cgroup must not exist yet.
    """
    if share.folder is None:
        return share
    try:
        Path(share.folder).mkdir()
        if share.kind == "cgroup v2":
            (Path(share.folder) / "cgroup.subtree_control").write_text("+cpu")
        for host in hosts:
            _host_folder(share, host.number).mkdir()
            set_quota(share, host.number, host.cpus)
    except OSError as error:
        remove(share)
        return _cores(
            len(hosts), hosts[0].cpus, f"a cgroup with a quota could not be made ({error})"
        )
    return share


def joining(share: CpuShare, host: int) -> list[str]:
    """Return the words before a command that is to run within the host's share."""
    words = []
    if share.folder is not None:
        words += [
            "/bin/sh",
            "-c",
            'echo 0 >"$0/cgroup.procs" && exec "$@"',
            str(_host_folder(share, host)),
        ]
    if share.cores:
        words += [tool("taskset"), "-c", ",".join(map(str, share.cores[host]))]
    return words


def members(share: CpuShare) -> list[int]:
    """Return the ids of the processes in the lab's cgroups."""
    ids = []
    if share.folder is not None:
        for file in [
            Path(share.folder, "cgroup.procs"),
            *Path(share.folder).glob("*/cgroup.procs"),
        ]:
            with contextlib.suppress(OSError):
                ids += [int(pid) for pid in file.read_text().split()]
    return ids


def remove(share: CpuShare) -> bool:
    """Remove the lab's cgroups; return whether they are gone.

    They stay while a process is in them.
    """
    if share.folder is None:
        return True
    for folder in [
        *(path for path in Path(share.folder).glob("*") if path.is_dir()),
        Path(share.folder),
    ]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not Path(share.folder).exists()


def shown(share: CpuShare) -> str:
    """Return the share as one line for people."""
    if share.kind == "none":
        return f"none: {share.reason}"
    if share.kind == "cores":
        return f"cores of their own ({share.reason})"
    return f"{share.kind} quota" + (", and cores of their own" if share.cores else "")
