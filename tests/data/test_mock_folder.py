"""Mock data appears whole or not at all, is made once, and never replaces something else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.data.mock_folder import make
from gallery_lib.errors import RunFailed

RECORD = {"kind": "test", "count": 2}


def fill(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "1.txt").write_text("one")
    (folder / "2.txt").write_text("two")


def test_the_second_call_finds_it_complete_and_changes_nothing(tmp_path: Path) -> None:
    first = make(tmp_path / "sub" / "data", RECORD, fill)
    assert (first.now, first.files) == (True, 2) and "made now" in str(first)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = make(tmp_path / "sub" / "data", RECORD, fill)
    assert (
        (second.now, second.files) == (False, 2)
        and second.seconds < 0.5
        and "complete already" in str(second)
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted(folder: Path) -> None:
        fill(folder)
        raise error

    with pytest.raises(error):
        make(tmp_path / "data", RECORD, interrupted)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".data.partial" / "old").mkdir(parents=True)
    (tmp_path / ".data.partial" / "half.txt").write_text("ha")
    assert make(tmp_path / "data", RECORD, fill).files == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "1.txt",
        "2.txt",
        "a",
        "data",
        "made.json",
    ]


def test_of_two_at_the_same_time_one_works_and_the_other_waits(tmp_path: Path) -> None:
    calls, results = [], []
    started = threading.Event()

    def slowly(folder: Path) -> None:
        calls.append(folder)
        started.set()
        threading.Event().wait(0.2)
        fill(folder)

    threads = [
        threading.Thread(target=lambda: results.append(make(tmp_path / "data", RECORD, slowly)))
        for _ in range(2)
    ]
    threads[0].start()
    started.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and sorted(made.now for made in results) == [False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_other_content_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused("out", tmp_path, "not empty"):
        make(tmp_path, RECORD, fill)
    with refused("out", tmp_path / "thesis.txt", "is a file"):
        make(tmp_path / "thesis.txt", RECORD, fill)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_record_or_changed_content_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data", RECORD, fill)
    with refused("out", "'count': 2", "'count': 3"):
        make(tmp_path / "data", {**RECORD, "count": 3}, fill)
    (tmp_path / "data" / "2.txt").unlink()
    with refused("out", "changed", "2 files"):
        make(tmp_path / "data", RECORD, fill)


def test_a_failing_write_is_a_failed_run_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="file/data"):
        make(tmp_path / "file" / "data", RECORD, fill)


def test_a_file_of_the_same_size_with_other_content_is_found(tmp_path: Path) -> None:
    make(tmp_path / "data", RECORD, fill)
    (tmp_path / "data" / "2.txt").write_text("TWO")
    with refused("out", "other content"):
        make(tmp_path / "data", RECORD, fill)
