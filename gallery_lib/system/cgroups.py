"""Linux control groups, of either version: where this process is, and how much of the CPU and of the memory it is given there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")


def own(kind: str, proc: Path = _PROC, controller: str = "cpu") -> tuple[Path, Path] | None:
    """The cgroup of this process in the hierarchy of the controller (`kind` cgroup: version 1) or in that of version 2
    (cgroup2), and the top of what is mounted of it; None where there is none."""
    controllers = controller if kind == "cgroup" else ""
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
            return (inside if inside.is_dir() and ".." not in inside.parts else Path(point)), Path(
                point
            )
    return None


def _quotas(kind: str, proc: Path) -> Iterator[float]:
    """Of the process's cgroup and of those above it, in cores."""
    for each in _above(own(kind, proc)):
        with contextlib.suppress(OSError, ValueError):  # no quota, or not in this cgroup
            if kind == "cgroup2":
                quota, period = (each / "cpu.max").read_text().split()[:2]
            else:
                quota, period = (
                    (each / "cpu.cfs_quota_us").read_text(),
                    (each / "cpu.cfs_period_us").read_text(),
                )
            if int(quota) > 0:
                yield int(quota) / int(period)


def cpu_quota(proc: Path = _PROC) -> float | None:
    """Cores' worth of time that this process and others in its cgroups may use; None: as much as there is."""
    with contextlib.suppress(OSError):  # not Linux
        return min(
            (quota for kind in ("cgroup", "cgroup2") for quota in _quotas(kind, proc)), default=None
        )
    return None


def memory_limit(proc: Path = _PROC) -> int | None:
    """Bytes that this process and others in its cgroups may hold; None: as much as there is."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # not Linux
        for kind, file in (("cgroup", "memory.limit_in_bytes"), ("cgroup2", "memory.max")):
            for each in _above(own(kind, proc, "memory")):
                with contextlib.suppress(OSError, ValueError):  # no limit, or not in this cgroup
                    found.append(int((each / file).read_text()))
    return min(found, default=None)


def _above(place: tuple[Path, Path] | None) -> Iterator[Path]:
    """A cgroup, and those that it is in, up to the top of what is mounted."""
    if place is None:
        return
    folder, top = place
    for each in (folder, *folder.parents):
        yield each
        if each == top:
            return
