"""Requirements of a lab on the machine, and the errors where they are not met."""

from __future__ import annotations

import errno
import os
import shutil

from gallery_lib.errors import InputError

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
