"""A file is there whole or not at all, one process holds a lock, and JSON has a declared shape."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from refusal import refused
from worker_processes import wait_until

from gallery_lib.system.files import (
    LockHeld,
    atomic_write,
    is_temporary,
    locked,
    read_json,
    write_json,
)


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
        with locked(path, wait=False):
            return False
    except LockHeld:
        return True


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
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, [float("nan")])
    assert path.read_text() == "old" and _names(tmp_path) == ["a"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    errors = {"missing/a": errno.ENOENT, "folder": errno.EISDIR, "full": errno.ENOSPC}
    for name, number in errors.items():
        with pytest.raises(OSError) as raised, atomic_write(tmp_path / name) as file:
            if name == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
            file.write("new")
            file.flush()
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / name))
    assert _names(tmp_path) == ["folder"]


def test_a_second_holder_waits_and_says_so_once_or_gives_up(tmp_path: Path) -> None:
    with _holder(tmp_path) as holder:
        with pytest.raises(LockHeld, match=str(tmp_path)), locked(tmp_path, wait=False):
            pass
        began, timer = time.monotonic(), threading.Timer(0.1, holder.communicate, ["\n"])
        with locked(tmp_path, waiting=timer.start):  # a timer cannot be started twice
            assert time.monotonic() - began > 0.1
        timer.join()


@pytest.mark.parametrize("name", [".", ".lock"])
def test_the_lock_goes_with_its_holder_and_what_that_has_forked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    forked = "import os, signal; (child := os.fork()) and print(child, flush=True); signal.pause()"
    with _holder(path, forked) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.kill()
        holder.wait()
        assert _is_held(path)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not _is_held(path), 5)


def test_a_command_that_the_holder_started_does_not_hold_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert child.poll() is None and not _is_held(tmp_path)
    finally:
        child.communicate()


# --------------------------------------------------------------------------------------------------
# JSON


@dataclasses.dataclass(frozen=True)
class Inner:
    name: str
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    rows: dict[str, Inner]
    pairs: list[tuple[int, float | None]]
    note: str | None = None


WHOLE = {"kind": "a", "rows": {"x": {"name": "n", "seconds": 1}}, "pairs": [[1, 2.5], [2, None]]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"more": 1}, ""),
        ({"kind": "c"}, "kind: Invalid enum value 'c'"),
        ({"rows": []}, "rows: Expected `object`, got `array`"),
        ({"rows": {"x": {}}}, "rows[...]: Object missing required field `name`"),
        ({"rows": {"x": {"name": 5}}}, "rows[...].name: Expected `str`, got `int`"),
        ({"pairs": [[1]]}, "pairs[0]: Expected `array` of length 2, got 1"),
        ({"pairs": [[1, "x"]]}, "pairs[0][1]: Expected `float | null`, got `str`"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {**WHOLE, **changes})
    if not said:
        whole = Outer("a", {"x": Inner("n", 1)}, [(1, 2.5), (2, None)])
        assert read_json(path, Outer, again="") == whole
        return
    with refused(said.partition(":")[0], path, said, "Run it again."):
        read_json(path, Outer, again="Run it again.")


@pytest.mark.parametrize(
    "content", ["", "{", "[1, NaN]", "[Infinity]", "[1e999]", "\xff", "[" * 100_000]
)
def test_what_is_no_json_is_one_error_with_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content.encode("latin-1"))
    with refused(path, "no JSON", "Run it again."):
        read_json(path, list, again="Run it again.")


def test_another_schema_is_refused_and_a_missing_file_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(FileNotFoundError):
        read_json(path, list, again="")
    write_json(path, {"schema": 7, "name": "n"})
    with refused("schema", path, "7"):
        read_json(path, Inner, schema=1, again="")
    assert read_json(path, Inner, schema=7, again="") == Inner("n")
