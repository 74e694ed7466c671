"""Fixtures for tests of a lab: a cache folder of their own, and a look at the machine.

Processes of a test are known by its cache folder. Labs of tests do not see each other: each test
has its own cache folder, and labs their own namespaces.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gallery_lib.system.processes import search_path

_TRY = """
ip link add name bridge type bridge && ip link add name one type veth peer name other &&
tc qdisc add dev one root tbf rate 1mbit burst 16kb latency 50ms
"""
GALLERY = [sys.executable, "-m", "gallery_lib.cli.main"]


@functools.cache
def why_no_lab() -> str | None:
    """Return why this machine cannot have a lab, or None when it can.

    The reason is found out without the code under test.
    """
    tools = ("ip", "tc", "unshare", "nsenter", "taskset")
    if missing := [name for name in tools if shutil.which(name) is None]:
        return f"no {', '.join(missing)}: apt-get install iproute2 util-linux"
    said = ""
    for rights in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *rights, "--net", "sh", "-c", _TRY]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return None
        said = " ".join(done.stderr.split())
    return (
        f"no network namespaces with bridge, veth and tbf ({said}): run as root, in a container "
        "with --privileged"
    )


@pytest.fixture(autouse=True)
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """Yield the cache folder of a test, and check afterwards that nothing of its labs is left.

    The check is made also when the test failed.
    """
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if request.node.get_closest_marker("cluster") and (reason := why_no_lab()):
        pytest.skip(reason)
    path = tmp_path / "cache"
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(path))
    yield path
    for file in (path / "lab").glob("*.json"):
        subprocess.run([*GALLERY, "lab", "down", "--name", file.stem], timeout=60)
    left = processes_of(path)
    for pid in left:
        os.kill(pid, 9)
    assert not left, f"processes {left} were left behind"


def gallery(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the gallery command to its end."""
    return subprocess.run([*GALLERY, *words], capture_output=True, text=True, timeout=timeout)


def start_gallery(*words: str) -> subprocess.Popen[str]:
    """Start the gallery command."""
    return subprocess.Popen(
        [*GALLERY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def processes_of(cache: Path) -> list[int]:
    """Return every process but this one that was started with the cache folder, directly or not."""
    wanted, found = f"GALLERY_CACHE_DIR={cache}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def cgroups(lab_id: str) -> list[Path]:
    """Return the cgroups that a lab has made."""
    roots = [Path(root) for root, _, _ in os.walk("/sys/fs/cgroup")]
    return [root for root in roots if root.name == f"gallery-lab-{lab_id}"]


def machine() -> dict[str, list[str]]:
    """Return what a lab might leave on the machine's own network and among its mounts."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return sorted(done.stdout.splitlines())

    mounts = sorted(Path("/proc/self/mountinfo").read_text().splitlines())
    links = lines("ip", "-brief", "link")
    return {"namespaces": lines("ip", "netns"), "links": links, "mounts": mounts}


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Return as soon as the condition holds, and fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come true in time"
        time.sleep(0.03)


def kept(cache: Path, name: str = "lab") -> dict:
    """Return what the lab's file says."""
    return json.loads((cache / "lab" / f"{name}.json").read_text())


def assert_nothing_is_left(cache: Path, lab_id: str, before: dict[str, list[str]]) -> None:
    assert processes_of(cache) == []
    assert cgroups(lab_id) == []
    assert machine() == before
    assert [path.name for path in (cache / "lab").iterdir()] == [".lock"]
