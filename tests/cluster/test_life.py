"""A lab is made whole or not at all, and goes without a trace, whatever is killed meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cluster.conftest import (
    GALLERY,
    PLAIN,
    assert_nothing_is_left,
    cgroups,
    check_refused_in_one_line,
    gallery,
    kept,
    machine,
    processes_of,
    said,
    start_gallery,
    start_on_hosts,
)
from refusal import refused
from worker_processes import wait_until

from gallery_lib.cluster import Lab, LabUnavailable, network

pytestmark = pytest.mark.cluster


def test_up_and_down_leave_the_machine_as_it_was(cache: Path) -> None:
    before = machine()
    said("lab", "up", "--hosts", "3", "--rate", "100mbit")
    assert machine() == before  # also while it is up: all of it is in namespaces without a name
    lab_id = kept(cache)["id"]
    run = start_on_hosts("setsid sleep 100", hosts=3)
    status = said("lab", "status")
    assert "lab `lab`, made " in status and "CPU share: " in status
    hosts = [line.split() for line in status.splitlines() if "10.77" in line]
    expected = [[f"host{n}", f"10.77.0.{n + 1}", "100", "Mbit/s"] for n in range(3)]
    assert [words[:4] for words in hosts] == expected
    assert all(int(words[-1]) >= 2 for words in hosts)

    assert said("lab", "down") == "the lab `lab` is gone.\n"
    run.communicate(timeout=30)
    assert run.returncode == 1
    assert_nothing_is_left(cache, lab_id)
    assert said("lab", "status") == "no lab is up.\n"
    assert said("lab", "down") == "there is no lab `lab`.\n"


@pytest.mark.parametrize(
    ("sent", "code", "then"),
    [(signal.SIGKILL, -9, "up"), (signal.SIGKILL, -9, "down"), (signal.SIGINT, 130, "down")],
)
def test_a_signal_in_the_middle_of_up_leaves_nothing_for_long(
    cache: Path, sent: signal.Signals, code: int, then: str
) -> None:
    process = start_gallery("lab", "up", "--hosts", "24")
    wait_until(lambda: (cache / "lab" / "lab.json").exists() and kept(cache)["keeper"])
    lab_id = kept(cache)["id"]
    process.send_signal(sent)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    said("lab", then)
    if then == "up":
        assert kept(cache)["id"] != lab_id and cgroups(lab_id) == []
        lab_id = kept(cache)["id"]
        said("lab", "down")
    wait_until(lambda: not processes_of(cache))
    assert_nothing_is_left(cache, lab_id)


def test_when_all_that_watches_a_run_is_killed_the_next_command_ends_what_runs(cache: Path) -> None:
    said("lab", "up")
    lab_id, keeper = kept(cache)["id"], kept(cache)["keeper"]
    sleep = ["sleep", str(1000 + os.getpid())]  # by which it is known: it has no environment
    run = start_on_hosts(f"env -i setsid {' '.join(sleep)}")

    def sleeping() -> int:
        return sum(process.info["cmdline"] == sleep for process in psutil.process_iter(["cmdline"]))

    wait_until(lambda: sleeping() == 2)
    started = processes_of(cache)
    watching = [p for p in started if b"supervisor" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(watching) == 2
    for pid in [run.pid, *watching, keeper]:
        os.kill(pid, signal.SIGKILL)
    run.communicate()
    assert sleeping() == 2
    said("lab", "down", "--name", "other")
    assert sleeping() == 0
    assert_nothing_is_left(cache, lab_id)


def test_another_lab_is_not_touched(cache: Path) -> None:
    with Lab(1, name="another") as another:
        another.popen(0, ["sleep", "100"])
        wait_until(lambda: another.processes(0))
        others = another.processes(0)
        before = machine()
        said("lab", "up")
        os.kill(kept(cache)["keeper"], signal.SIGKILL)
        said("lab", "down")
        assert machine() == before and another.processes(0) == others


def test_a_lab_made_in_python_ends_with_its_process(cache: Path) -> None:
    code = "import time; from gallery_lib.cluster import Lab\nwith Lab(2, name='lab') as lab:\n"
    code += "    lab.popen(1, ['sleep', '100']); print('up', flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    lab_id = kept(cache)["id"]
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_of(cache))
    assert_nothing_is_left(cache, lab_id)


def test_a_lab_whose_file_was_deleted_ends_by_itself(cache: Path) -> None:
    said("lab", "up")
    lab_id = kept(cache)["id"]
    shutil.rmtree(cache)
    wait_until(lambda: not processes_of(cache))
    assert cgroups(lab_id) == []


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--hosts", "0"], ["hosts='0'", 1, 64]),
        (["--rate", "fast"], ["rate='fast'", "100mbit"]),
        (["--cpus", "4000"], ["cpus=4000", "core(s)"]),
        (["--name", "../x"], ["name='../x'"]),
        (["--host", "2"], ["`--host`", "`--hosts`", "gallery lab up --help"]),
    ],
)
def test_bad_input_ends_with_2_and_makes_nothing(
    cache: Path, words: list[str], values: list[object]
) -> None:
    check_refused_in_one_line(gallery("lab", "up", *words), *values)
    assert not list(cache.rglob("*.json"))


def test_without_root_a_user_namespace_does_it(cache: Path) -> None:
    """A root without its capabilities keeps one, without which the kernel lets nobody be root."""
    if subprocess.run(
        ["unshare", "--user", "--map-root-user", "true"], capture_output=True
    ).returncode:
        pytest.skip(
            "this machine allows no user namespaces: sysctl -w user.max_user_namespaces=10000"
        )
    drop = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"] * (os.geteuid() == 0)

    def without_rights(*words: str) -> str:
        command = [*drop, *GALLERY, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert " in a user namespace\n" in without_rights("lab", "up")
    lab_id = kept(cache)["id"]
    shown = without_rights(*PLAIN, "sh", "-c", "ip -4 -br address show eth0")
    addresses = sorted(line.split()[-1] for line in shown.splitlines())
    assert addresses == ["10.77.0.1/24", "10.77.0.2/24"]
    without_rights("lab", "down")
    assert_nothing_is_left(cache, lab_id)


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
    needed = "sysctl -w user.max_user_namespaces"
    check_refused_in_one_line(done, "network namespaces (No space left on device)", needed)
    assert processes_of(cache) == []
    assert not list(cache.rglob("*.json"))


def test_a_missing_command_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.setattr(network, "_SYSTEM_FOLDERS", str(tmp_path))
        with refused("ip", "apt-get install iproute2", error=LabUnavailable):
            Lab(2).up()
    assert not list(cache.rglob("*.json"))
