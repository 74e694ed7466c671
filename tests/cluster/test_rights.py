"""A lab without the rights of root, and what is said where none can be made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cluster.conftest import GALLERY, assert_nothing_is_left, kept, machine, processes_of
from refusal import check_refused_command, refused

from gallery_lib.cluster import Lab, LabUnavailable, network

pytestmark = pytest.mark.cluster


def without_rights(*command: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command as root without the capabilities of root."""
    if os.geteuid() == 0:
        bounding = f"--bounding-set=-all{''.join(f',+{name}' for name in more)}"
        command = ("setpriv", bounding, "--inh-caps=-all", *command)
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_without_root_a_user_namespace_does_it(cache: Path) -> None:
    if subprocess.run(
        ["unshare", "--user", "--map-root-user", "true"], capture_output=True
    ).returncode:
        pytest.skip(
            "this machine allows no user namespaces: sysctl -w user.max_user_namespaces=10000"
        )
    before = machine()
    rights = ("setfcap",)  # without it the kernel lets nobody stand for root
    done = without_rights(*GALLERY, "lab", "up", more=rights)
    assert (done.returncode, done.stderr) == (0, "")
    assert " in a user namespace\n" in done.stdout
    lab_id = kept(cache)["id"]
    run = ["lab", "run", "--no-torchrun", "--", "sh", "-c", "ip -4 -br address show eth0"]
    done = without_rights(*GALLERY, *run, more=rights)
    assert (done.returncode, done.stderr) == (0, "")
    addresses = sorted(line.split()[-1] for line in done.stdout.splitlines())
    assert addresses == ["10.77.0.1/24", "10.77.0.2/24"]
    assert without_rights(*GALLERY, "lab", "down", more=rights).returncode == 0
    assert_nothing_is_left(cache, lab_id, before)


def test_where_no_namespace_can_be_made_one_message_says_what_is_needed(cache: Path) -> None:
    limited = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", limited, "sh", *GALLERY, "lab", "up"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "max_net_namespaces" in done.stderr and "error: " not in done.stderr:
        pytest.skip(
            f"the limit of namespaces cannot be set here ({done.stderr.strip()}): run where user "
            "namespaces are allowed"
        )
    values = "network namespaces (No space left on device)", "sysctl -w user.max_user_namespaces"
    check_refused_command(done.returncode, done.stderr, *values)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert processes_of(cache) == []
    assert not list(cache.rglob("*.json"))


def test_a_missing_command_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(network, "_SYSTEM_FOLDERS", str(tmp_path))
    with refused("ip", "apt-get install iproute2", error=LabUnavailable):
        Lab(2).up()
    assert not list(cache.rglob("*.json"))
