"""Linux control groups, of either version: where this process is, and how much of the CPU it is given there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")


def own(kind: str, proc: Path = _PROC) -> tuple[Path, Path] | None:
    """The cgroup of this process in the hierarchy that controls the CPU (`kind` cgroup: version 1) or in that of version 2
    (cgroup2), and the top of what is mounted of it; None where there is none."""
    controllers = "cpu" if kind == "cgroup" else ""
    path = None
    for line in (proc / "cgroup").read_text().splitlines():
        _, names, place = line.split(":", 2)
        if controllers in names.split(","):
            path = place
    if path is None:
        return None
    for line in (proc / "mountinfo").read_text().splitlines():
        mount, _, rest = line.partition(" - ")
        root, point = mount.split()[3:5]
        filesystem, _, options = rest.split()[:3]
        if filesystem == kind and (not controllers or controllers in options.split(",")):
            inside = Path(point) / os.path.relpath(path, root)
            return (inside if inside.is_dir() and ".." not in inside.parts else Path(point)), Path(point)
    return None


def _quotas(kind: str, proc: Path) -> Iterator[float]:
    """Of the process's cgroup and of those above it, in cores."""
    found = own(kind, proc)
    if found is None:
        return
    folder, top = found
    for each in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):  # no quota, or not in this cgroup
            if kind == "cgroup2":
                quota, period = (each / "cpu.max").read_text().split()[:2]
            else:
                quota, period = (each / "cpu.cfs_quota_us").read_text(), (each / "cpu.cfs_period_us").read_text()
            if int(quota) > 0:
                yield int(quota) / int(period)
        if each == top:
            return


def cpu_quota(proc: Path = _PROC) -> float | None:
    """Cores' worth of time that this process and others in its cgroups may use; None: as much as there is."""
    with contextlib.suppress(OSError):  # not Linux
        return min((quota for kind in ("cgroup", "cgroup2") for quota in _quotas(kind, proc)), default=None)
    return None
