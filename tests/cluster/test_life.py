"""A lab is made whole or not at all, and goes without a trace, whatever is killed meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.conftest import (
    assert_nothing_is_left,
    cgroups,
    gallery,
    kept,
    machine,
    processes_of,
    start_gallery,
    wait_until,
)
from refusal import check_refused_command

from gallery_lib.cluster import Lab

pytestmark = pytest.mark.cluster


def test_up_and_down_leave_the_machine_as_it_was(cache: Path) -> None:
    before = machine()
    done = gallery("lab", "up", "--hosts", "3", "--rate", "100mbit")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine() == before  # also while it is up: all of it is in namespaces without a name
    lab_id = kept(cache)["id"]
    plain = ["lab", "run", "--no-torchrun", "--", "sh", "-c"]
    run = start_gallery(*plain, "setsid sleep 100 & echo started; wait")
    assert run.stdout is not None
    assert all("started" in run.stdout.readline() for _ in range(3))
    status = gallery("lab", "status").stdout
    assert "lab `lab`, made " in status and "CPU share: " in status
    hosts = [line.split() for line in status.splitlines() if "10.77" in line]
    expected = [[f"host{n}", f"10.77.0.{n + 1}", "100", "Mbit/s"] for n in range(3)]
    assert [words[:4] for words in hosts] == expected
    assert all(int(words[-1]) >= 2 for words in hosts)

    done = gallery("lab", "down")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the lab `lab` is gone.\n", "")
    run.communicate(timeout=30)
    assert run.returncode == 1
    assert_nothing_is_left(cache, lab_id, before)
    assert gallery("lab", "status").stdout == "no lab is up.\n"
    done = gallery("lab", "down")
    assert (done.returncode, done.stdout) == (0, "there is no lab `lab`.\n")


@pytest.mark.parametrize(
    ("sent", "code", "then"),
    [(signal.SIGKILL, -9, "up"), (signal.SIGKILL, -9, "down"), (signal.SIGINT, 130, "down")],
)
def test_a_signal_in_the_middle_of_up_leaves_nothing_for_long(
    cache: Path, sent: signal.Signals, code: int, then: str
) -> None:
    before = machine()
    process = start_gallery("lab", "up", "--hosts", "24")
    wait_until(lambda: (cache / "lab" / "lab.json").exists() and kept(cache)["keeper"])
    lab_id = kept(cache)["id"]
    process.send_signal(sent)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, "")
    done = gallery("lab", then)
    assert (done.returncode, done.stderr) == (0, "")
    if then == "up":
        assert kept(cache)["id"] != lab_id and cgroups(lab_id) == []
        lab_id = kept(cache)["id"]
        assert gallery("lab", "down").returncode == 0
    wait_until(lambda: not processes_of(cache))
    assert_nothing_is_left(cache, lab_id, before)


def test_when_all_that_watches_a_run_is_killed_the_next_command_ends_what_runs(
    cache: Path,
) -> None:
    before = machine()
    assert gallery("lab", "up").returncode == 0
    lab_id, keeper = kept(cache)["id"], kept(cache)["keeper"]
    sleep = f"sleep {1000 + os.getpid()}"  # by which it is known: it has no environment
    plain = ["lab", "run", "--no-torchrun", "--", "sh", "-c"]
    run = start_gallery(*plain, f"env -i setsid {sleep} & echo started; wait")
    assert run.stdout is not None
    assert all("started" in run.stdout.readline() for _ in range(2))

    def sleeping() -> list[str]:
        commands = {path: _read(path).split(b"\0") for path in Path("/proc").glob("[0-9]*/cmdline")}
        return [
            str(path) for path, words in commands.items() if words[:2] == sleep.encode().split()
        ]

    wait_until(lambda: len(sleeping()) == 2)
    started = processes_of(cache)
    watching = [p for p in started if b"supervisor" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(watching) == 2
    for pid in [run.pid, *watching, keeper]:
        os.kill(pid, signal.SIGKILL)
    run.communicate()
    assert len(sleeping()) == 2

    done = gallery("lab", "down", "--name", "other")
    assert (done.returncode, done.stderr) == (0, "")
    assert sleeping() == []
    assert_nothing_is_left(cache, lab_id, before)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_another_lab_is_not_touched(cache: Path) -> None:
    with Lab(1, name="another") as another:
        another.popen(0, ["sleep", "100"])
        wait_until(lambda: another.processes(0))
        others = another.processes(0)
        before = machine()
        assert gallery("lab", "up").returncode == 0
        os.kill(kept(cache)["keeper"], signal.SIGKILL)
        assert gallery("lab", "down").returncode == 0
        assert machine() == before and another.processes(0) == others


def test_a_lab_made_in_python_ends_with_its_process(cache: Path) -> None:
    before = machine()
    code = "import time; from gallery_lib.cluster import Lab\nwith Lab(2, name='lab') as lab:\n"
    code += "    lab.popen(1, ['sleep', '100']); print('up', flush=True); time.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    lab_id = kept(cache)["id"]
    process.kill()
    process.communicate()
    wait_until(lambda: not processes_of(cache))
    assert_nothing_is_left(cache, lab_id, before)


def test_a_lab_whose_file_was_deleted_ends_by_itself(cache: Path) -> None:
    assert gallery("lab", "up").returncode == 0
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
    done = gallery("lab", "up", *words)
    check_refused_command(done.returncode, done.stderr, *values)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(cache.rglob("*.json"))
