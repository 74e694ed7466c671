"""Fixtures for tests of a lab: a cache folder of their own, and a look at the machine.

Processes of a test are known by its cache folder. Labs of tests do not see each other: each test
has its own cache folder, and labs their own namespaces.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from refusal import check_refused_command

from gallery_lib.system.processes import search_path

_TRY = """
ip link add name bridge type bridge && ip link add name one type veth peer name other &&
tc qdisc add dev one root tbf rate 1mbit burst 16kb latency 50ms
"""
GALLERY = [sys.executable, "-m", "gallery_lib.cli.main"]
PLAIN = ("lab", "run", "--no-torchrun", "--")


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
    makes_labs = request.node.get_closest_marker("cluster")
    if makes_labs and (reason := why_no_lab()):
        pytest.skip(reason)
    before = machine() if makes_labs else {}
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
    assert not makes_labs or machine() == before


def gallery(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GALLERY, *words], capture_output=True, text=True, timeout=timeout)


def said(*words: str, timeout: float = 60) -> str:
    """Return what the gallery command prints. It has to end with 0, and to warn of nothing."""
    done = gallery(*words, timeout=timeout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def start_gallery(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*GALLERY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def start_on_hosts(lines: str, hosts: int = 2) -> subprocess.Popen[str]:
    """Start lines of sh on every host of the lab; return once they have said `started` on all."""
    run = start_gallery(*PLAIN, "sh", "-c", f"{lines} & echo started; wait")
    assert {run.stdout.readline() for _ in range(hosts)} == {
        f"host{number} | started\n" for number in range(hosts)
    }
    return run


def check_refused_in_one_line(done: subprocess.CompletedProcess[str], *values: object) -> None:
    """Assert that a command has refused its input with exit code 2 and one line on stderr."""
    check_refused_command(done.returncode, done.stderr, *values)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""


def processes_of(cache: Path) -> list[int]:
    """Return every process but this one that was started with the cache folder, directly or not."""
    cache_of = {
        process.pid: (process.info["environ"] or {}).get("GALLERY_CACHE_DIR")
        for process in psutil.process_iter(["environ"])
    }
    return [pid for pid, own in cache_of.items() if own == str(cache) and pid != os.getpid()]


def cgroups(lab_id: str) -> list[Path]:
    roots = [Path(root) for root, _, _ in os.walk("/sys/fs/cgroup")]
    return [root for root in roots if root.name == f"gallery-lab-{lab_id}"]


def machine() -> dict[str, list[str]]:
    """Return what a lab might leave on the machine's own network and among its mounts."""
    commands = (["ip", "netns"], ["ip", "-brief", "link"], ["cat", "/proc/self/mountinfo"])
    texts = {
        " ".join(words): subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for words in commands
    }
    return {command: sorted(text.splitlines()) for command, text in texts.items()}


def kept(cache: Path) -> dict:
    return json.loads((cache / "lab" / "lab.json").read_text())


def assert_nothing_is_left(cache: Path, lab_id: str) -> None:
    """Assert that the lab has left nothing; the machine is compared at the end of the test."""
    assert processes_of(cache) == []
    assert cgroups(lab_id) == []
    assert [path.name for path in (cache / "lab").iterdir()] == [".lock"]
