"""A run's folder is checked before anything is trained, and locked by one run."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path

from refusal import refused

from gallery_lib.errors import InputError
from gallery_lib.launcher.preflight import checked_folder, locked_for_host


def test_a_new_folder_is_made_and_what_a_broken_off_run_left_is_accepted(tmp_path: Path) -> None:
    folder = checked_folder(str(tmp_path / "a" / "b"))
    assert folder.is_dir()
    for name in ("config.json", "steps.jsonl", "log-rank12.txt", "launcher-host0.txt", "slurm-7"):
        (folder / name).touch()
    assert checked_folder(str(folder)) == folder
    checked_folder(str(tmp_path / "only asked"), make=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_that_will_not_do_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    for name in "edcba":
        (tmp_path / "full" / name).touch()
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "results.json").touch()
    for name, values in {
        "--x": ["./--x"],
        str(tmp_path / "file"): ["is a file"],
        str(tmp_path / "full"): ["(a, b, c and 2 more)"],
        str(tmp_path / "done"): ["finished run"],
        str(tmp_path / ("x" * 300)): [re.compile("[Ff]ile name too long")],
        str(tmp_path / "file" / "below"): ["cannot be used"],
    }.items():
        with refused("run_dir", name, *values):
            checked_folder(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["done", "file", "full"]


def _held_elsewhere(folder: Path) -> str:
    try:
        with locked_for_host(folder, 0):
            return "free"
    except InputError as error:
        return str(error)


def test_a_second_process_is_refused_until_the_first_lets_go_and_hosts_share_a_folder(
    tmp_path: Path,
) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with locked_for_host(tmp_path, 0), locked_for_host(tmp_path, 1):
            assert "another run is at work in it" in pool.apply(_held_elsewhere, (tmp_path,))
        assert pool.apply(_held_elsewhere, (tmp_path,)) == "free"
    assert list(tmp_path.iterdir()) == []
