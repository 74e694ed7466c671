"""A file is there whole or not at all, and one process at a time holds a lock."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gallery_lib.system.files import LockHeld, atomic_write, is_temporary, locked


def _holder(path: Path, then: str = "input()") -> subprocess.Popen[str]:
    """Start a process that holds the lock until its standard input ends; return it when it does."""
    code = (
        "from pathlib import Path\n"
        "from gallery_lib.system.files import locked\n"
        f"with locked(Path({str(path)!r})):\n"
        "    print('held', flush=True)\n"
        f"    {then}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _is_held(path: Path) -> bool:
    try:
        with locked(path, seconds=0):
            return False
    except LockHeld:
        return True


@pytest.fixture(params=["folder", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder, or the name of a lock file that does not exist yet."""
    return tmp_path if request.param == "folder" else tmp_path / ".lock"


@pytest.mark.parametrize(("mode", "content"), [("w", "größer\n"), ("wb", b"\0\xff")])
@pytest.mark.parametrize("sync", [False, True])
def test_the_old_content_is_there_until_the_new_one_is_complete(
    tmp_path: Path, mode: str, content: str | bytes, sync: bool
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with atomic_write(path, mode, sync=sync) as file:  # type: ignore[arg-type]
        file.write(content)
        assert path.read_text() == "old"
        assert [is_temporary(name) for name in _names(tmp_path)] == [True, False]
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert _names(tmp_path) == ["a"]


def test_an_exception_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        file.write("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and _names(tmp_path) == ["a"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, number in {"missing/a": errno.ENOENT, "folder": errno.EISDIR}.items():
        with pytest.raises(OSError) as raised, atomic_write(tmp_path / name) as file:
            file.write("new")
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / name))
    assert _names(tmp_path) == ["folder"]


def test_an_error_of_writing_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(OSError) as raised, atomic_write(path) as file:
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write("new")
        file.flush()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert _names(tmp_path) == []


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write("first")
        second.write("second")
    assert path.read_text() == "first" and _names(tmp_path) == ["a"]


def test_a_file_has_the_permissions_that_the_user_wants(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_second_holder_waits_and_says_so_once(path: Path) -> None:
    holder = _holder(path)
    said: list[str] = []
    released = False

    def release() -> None:
        nonlocal released
        while not said:
            time.sleep(0.01)
        time.sleep(0.1)
        released = True
        holder.communicate("\n")

    thread = threading.Thread(target=release)
    thread.start()
    with locked(path, waiting=lambda: said.append("waiting")):
        assert released
    thread.join()
    assert said == ["waiting"]


def test_who_waits_no_longer_gets_an_error_that_names_the_lock(path: Path) -> None:
    with _holder(path) as holder:
        began = time.monotonic()
        with pytest.raises(LockHeld, match=str(path)), locked(path, seconds=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 5
        with pytest.raises(LockHeld), locked(path, seconds=0):
            pass
        holder.communicate("\n")
    assert not _is_held(path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_lock_goes_with_its_holder_however_that_ends(path: Path, number: int) -> None:
    with _holder(path) as holder:
        assert _is_held(path)
        while holder.poll() is None:  # one just before `input` reads is only seen after the read
            holder.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(1)
        assert not _is_held(path)


def test_a_command_that_the_holder_started_does_not_hold_the_lock(path: Path) -> None:
    with locked(path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert child.poll() is None and not _is_held(path)
    finally:
        child.communicate()


def test_a_process_that_was_forked_meanwhile_holds_the_lock_too(path: Path) -> None:
    forked = "import os, signal; (child := os.fork()) and print(child, flush=True); signal.pause()"
    with _holder(path, forked) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        assert _is_held(path)
        os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 5
        while _is_held(path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _is_held(path)
