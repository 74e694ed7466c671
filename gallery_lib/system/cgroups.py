"""Linux control groups, version 1 or 2: this process's cgroup, and its CPU and memory limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc/self")


def own(kind: str, proc: Path = _PROC, controller: str = "cpu") -> tuple[Path, Path] | None:
    """Return this process's cgroup and the mounted top of its hierarchy; None where there is none.

    Args:
        kind: `cgroup` for version 1 (the controller's hierarchy), `cgroup2` for version 2.
        proc: the process's folder in /proc.
        controller: the controller, for version 1.
    """
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
    """Yield the CPU quotas of the process's cgroup and of those above it, in cores."""
    for folder in _above(own(kind, proc)):
        with contextlib.suppress(OSError, ValueError):  # no quota, or not in this cgroup
            if kind == "cgroup2":
                quota, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                quota, period = (
                    (folder / "cpu.cfs_quota_us").read_text(),
                    (folder / "cpu.cfs_period_us").read_text(),
                )
            if int(quota) > 0:
                yield int(quota) / int(period)


def cpu_quota(proc: Path = _PROC) -> float | None:
    """Return the cores' worth of time that this process's cgroups may use; None: no limit.

    The process shares it with others in its cgroups.
    """
    with contextlib.suppress(OSError):  # not Linux
        return min(
            (quota for kind in ("cgroup", "cgroup2") for quota in _quotas(kind, proc)), default=None
        )
    return None


def memory_limit(proc: Path = _PROC) -> int | None:
    """Return the bytes that this process's cgroups may hold; None: no limit.

    The process shares them with others in its cgroups.
    """
    limits: list[int] = []
    with contextlib.suppress(OSError):  # not Linux
        for kind, file in (("cgroup", "memory.limit_in_bytes"), ("cgroup2", "memory.max")):
            for folder in _above(own(kind, proc, "memory")):
                with contextlib.suppress(OSError, ValueError):  # no limit, or not in this cgroup
                    limits.append(int((folder / file).read_text()))
    return min(limits, default=None)


def _above(place: tuple[Path, Path] | None) -> Iterator[Path]:
    """Yield a cgroup and its ancestors, up to the top of what is mounted."""
    if place is None:
        return
    folder, top = place
    for level in (folder, *folder.parents):
        yield level
        if level == top:
            return
