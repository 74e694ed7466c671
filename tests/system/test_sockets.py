"""Folders for sockets have short paths, are private, and go with their owner, however it ends."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from gallery_lib.system import sockets
from gallery_lib.system.sockets import PrivateFolder


def test_the_folder_is_private_and_short_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 100)))
    folder = PrivateFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(os.fsencode(folder.path)) <= 103 - len("/listener-xxxxxxxx")
    folder.close()
    folder.close()
    assert not folder.path.exists()


def test_the_folder_of_a_killed_owner_goes_with_the_next_one_and_no_other_does() -> None:
    alive, next_one = PrivateFolder(), PrivateFolder()
    killed, new = (alive.path.with_name(f"{sockets.PREFIX}test-{name}") for name in ("old", "new"))
    for folder in (killed, new):
        folder.mkdir()
    for folder in (alive.path, killed):
        os.utime(folder, (time.time() - 3600, time.time() - 3600))
    next_one.close()
    assert alive.path.exists() and new.exists() and not killed.exists()
    alive.close()
    new.rmdir()
