"""Mock data appear whole or not at all, are made once, go on, and never replace something else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.data.mock_folder import Made, is_made, make
from gallery_lib.errors import RunFailed

RECORD = {"kind": "test", "count": 2}
JOBS = {"a/1.txt": ("one",), "a/2.txt": ("two",), "b/3.txt": ("three",)}


def write(path: Path, content: str) -> None:
    path.write_text(content)


def made_in(root: Path, record: dict[str, object] = RECORD, write: object = write) -> Made:
    return make(root, record, JOBS, write, progress=False)


def contents(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*.txt")}


def test_the_second_call_finds_it_complete_and_changes_nothing(tmp_path: Path) -> None:
    first = made_in(tmp_path / "sub" / "data")
    assert (first.now, first.files) == (True, 3) and "made now" in str(first)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    second = made_in(tmp_path / "sub" / "data")
    assert (
        (second.now, second.files) == (False, 3)
        and second.seconds < 0.5
        and "complete already" in str(second)
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


class Interrupt:
    """Writer that is interrupted at a file, of which it has written a part."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.written: list[str] = []

    def __call__(self, path: Path, content: str) -> None:
        if path.name == self.at:
            path.with_name(f".{path.name}.77.tmp").write_text(content[:2])
            raise KeyboardInterrupt
        self.written.append(path.name)
        write(path, content)


def test_an_interrupted_call_leaves_nothing_that_looks_whole_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    first = Interrupt("2.txt")
    with pytest.raises(KeyboardInterrupt):
        made_in(tmp_path / "data", write=first)
    # Another thread may have written the file behind the one that was interrupted.
    assert sorted(first.written) in (["1.txt"], ["1.txt", "3.txt"])
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".partial"]
    assert not is_made(tmp_path / "data")
    # As where a call was killed while it moved the content up.
    (tmp_path / "data" / ".partial" / "a").rename(tmp_path / "data" / "a")
    again = Interrupt("none")
    assert made_in(tmp_path / "data", write=again).files == 3
    assert sorted(first.written + again.written) == ["1.txt", "2.txt", "3.txt"]
    assert is_made(tmp_path / "data")
    assert contents(tmp_path / "data") == {"a/1.txt": "one", "a/2.txt": "two", "b/3.txt": "three"}
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["a", "b", "made.json"]


def test_other_data_than_the_folder_holds_are_refused_untouched(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        made_in(tmp_path / "data", write=Interrupt("2.txt"))
    for _ in range(2):  # interrupted, then complete
        before = contents(tmp_path / "data")
        with refused("out", "'count': 2", "'count': 3"):
            made_in(tmp_path / "data", {**RECORD, "count": 3})
        assert contents(tmp_path / "data") == before
        made_in(tmp_path / "data")


def test_of_two_at_the_same_time_one_works_and_the_other_waits(tmp_path: Path) -> None:
    calls, results = [], []
    started = threading.Event()

    def slowly(path: Path, content: str) -> None:
        calls.append(path)
        started.set()
        threading.Event().wait(0.1)
        write(path, content)

    threads = [
        threading.Thread(target=lambda: results.append(made_in(tmp_path / "data", write=slowly)))
        for _ in range(2)
    ]
    threads[0].start()
    started.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert len(calls) == 3 and sorted(made.now for made in results) == [False, True]


def test_other_content_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with refused("out", tmp_path, "not empty"):
        made_in(tmp_path)
    with refused("out", tmp_path / "thesis.txt", "is a file"):
        made_in(tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failing_write_is_a_failed_run_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="file/data"):
        made_in(tmp_path / "file" / "data")
