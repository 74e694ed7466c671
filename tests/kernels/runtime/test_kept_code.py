"""Machine code is loaded only if it is what was stored, and only from safe folders.

Nobody else may write to such a folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.kernels.runtime import kept_code
from gallery_lib.system import paths


def test_a_file_that_was_kept_is_sound(tmp_path: Path) -> None:
    kept_code.keep(tmp_path / "a.so", b"code")
    assert kept_code.sound(tmp_path / "a.so") and (tmp_path / "a.so").read_bytes() == b"code"
    assert not kept_code.sound(tmp_path / "b.so")


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_file_is_not_sound(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "a.so"
    kept_code.keep(file, b"code")
    file.write_bytes({"cut": b"co", "empty": b"", "other": b"edoc"}[damage])
    assert not kept_code.sound(file)


def test_a_file_without_its_digest_is_built_anew_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"code")
    assert not kept_code.sound(tmp_path / "a.so")


def test_folders_of_code_are_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = paths.code_folder(tmp_path / "code")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code").chmod(mode)
    with refused(tmp_path / "code", f"mode {mode:o}", f"chmod -R go-w {tmp_path / 'code'}"):
        paths.code_folder(tmp_path / "code")


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_folder_that_others_may_rename_is_refused(tmp_path: Path, through_a_link: bool) -> None:
    shared = tmp_path / "shared"
    (shared / "mine").mkdir(parents=True)
    shared.chmod(0o777)
    code = tmp_path / "link" if through_a_link else shared / "mine" / "code"
    if through_a_link:
        code.symlink_to(shared / "mine")
    with refused(code, f"{shared} may be written by others (mode 777)", code):
        paths.code_folder(code)
    shared.chmod(0o1777)  # as /tmp: there each renames what is his own
    assert paths.code_folder(code) == code


def test_a_folder_that_others_can_enter_is_searched_whole_and_closed(tmp_path: Path) -> None:
    code, file = tmp_path / "code", tmp_path / "code" / "ab" / "kernel.so"
    file.parent.mkdir(parents=True)
    file.touch()
    for writable in (file, file.parent):
        mode = writable.stat().st_mode
        writable.chmod(mode | 0o020)
        with refused(code, str(writable), f"chmod go-w {writable}"):
            paths.code_folder(code)
        writable.chmod(mode)
    assert paths.code_folder(code).stat().st_mode & 0o777 == 0o700
    file.chmod(0o666)  # nobody reaches it
    assert paths.code_folder(code) == code


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: needs root")
@pytest.mark.parametrize(
    ("mode", "foreign"), [(0o755, "."), (0o755, "ab/kernel.so"), (0o700, "ab"), (0o700, "own.so")]
)
def test_code_of_another_user_is_refused(tmp_path: Path, mode: int, foreign: str) -> None:
    code = tmp_path / "code"
    (code / "ab").mkdir(parents=True)
    for name in ("own.so", "ab/kernel.so"):
        (code / name).touch()
    code.chmod(mode)
    os.chown(code / foreign, 12345, -1)
    with refused(code, f"{code / foreign} belongs to user 12345"):
        paths.code_folder(code)
