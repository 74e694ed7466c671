"""The tree keeps the rules of the house, and a breach of each rule is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import house, sizes

LONG_FILE = "x = 1\n" * 301
LONG_FUNCTION = "def walk():\n" + "    x = 1\n" * 60
LONG_METHOD = "class Stroll:\n" + "    def walk(self):\n" + "        x = 1\n" * 60


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return plant(path, source), which writes a file into a small tree and returns the faults."""
    monkeypatch.setattr(sizes, "FILES", {})
    monkeypatch.setattr(sizes, "FUNCTIONS", {})
    for name in house.LOOSE:
        path = tmp_path / "gallery_lib" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def plant(name: str, source: str) -> list[str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return house.faults(tmp_path)

    return plant


def test_the_tree_keeps_every_rule(checkout: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.house"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_fault_ends_the_command_with_exit_code_1(tmp_path: Path, checkout: Path) -> None:
    script = tmp_path / "tests" / "project"
    script.mkdir(parents=True)
    for name in ("house.py", "import_direction.py", "sizes.py"):
        (script / name).write_text((checkout / "tests" / "project" / name).read_text())
    done = subprocess.run(
        [sys.executable, "-m", "tests.project.house"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "gallery_lib/errors.py: is gone" in done.stdout


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("gallery_lib/train/loop.py", "import gallery_lib.launcher", "loop.py:1: `train` (floor"),
        ("gallery_lib/attic/old.py", "", "`attic` has no floor yet"),
        ("gallery_lib/config.py", "", "gallery_lib/config.py: lies outside the rooms"),
        ("gallery_lib/train/loop.py", LONG_FILE, "gallery_lib/train/loop.py: 301 lines, at most"),
        ("launch_single_task.py", LONG_FILE, "launch_single_task.py: 301 lines, at most 300"),
        ("tests/train/test_loop.py", LONG_FILE, "tests/train/test_loop.py: 301 lines, at most 300"),
        ("benchmarks/a.py", LONG_FUNCTION, "benchmarks/a.py:walk: 61 lines, at most 60"),
        ("docs/a.py", LONG_METHOD, "docs/a.py:Stroll.walk: 61 lines, at most 60"),
        ("notebooks/a/b.py", f"async {LONG_FUNCTION}", "notebooks/a/b.py:walk: 61 lines"),
    ],
)
def test_a_breach_is_found(planted, name: str, source: str, fault: str) -> None:
    (message,) = planted(name, source)
    assert fault in message


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gallery_lib/train/loop.py", LONG_FILE.removesuffix("x = 1\n")),
        ("data_prep/a.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
        ("tests/train/test_loop.py", LONG_FUNCTION),
        ("runs/copy.py", LONG_FILE),
    ],
)
def test_what_keeps_the_limits_passes(planted, name: str, source: str) -> None:
    assert planted(name, source) == []


def test_what_has_a_reason_passes_and_an_empty_reason_is_none(planted, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "FILES", {"docs/a.py": "a table of cases"})
    monkeypatch.setattr(sizes, "FUNCTIONS", {"docs/b.py:walk": "one table after the other"})
    planted("docs/a.py", LONG_FILE)
    assert planted("docs/b.py", LONG_FUNCTION) == []
    monkeypatch.setattr(sizes, "FILES", {"docs/a.py": " "})
    (message,) = planted("docs/b.py", LONG_FUNCTION)
    assert "docs/a.py: 301 lines" in message


def test_a_reason_that_is_no_longer_needed_is_a_fault(planted, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "FILES", {"docs/a.py": "a table of cases", "docs/gone.py": "once"})
    monkeypatch.setattr(sizes, "FUNCTIONS", {"docs/a.py:walk": "one table after the other"})
    assert planted("docs/a.py", "x = 1\n") == [
        "docs/a.py: no longer above 300 lines. "
        "Remove its entry from FILES in tests/project/sizes.py",
        "docs/gone.py: no longer above 300 lines. "
        "Remove its entry from FILES in tests/project/sizes.py",
        "docs/a.py:walk: no longer above 60 lines. "
        "Remove its entry from FUNCTIONS in tests/project/sizes.py",
    ]


def test_a_module_that_no_longer_lies_loose_is_a_fault(planted, tmp_path: Path) -> None:
    (tmp_path / "gallery_lib" / "stats.py").unlink()
    (message,) = planted("docs/a.py", "")
    assert "gallery_lib/stats.py: is gone" in message


WITHOUT_GOOD_DOCSTRINGS = '''\
def bare():
    return 1


def noun():
    """Returns a number."""
    return 1


def half(a, b):
    """Add numbers.

    Args:
        a: The first one.
    """
    return a + b
'''


def test_ruff_asks_everywhere_for_docstrings_that_begin_with_a_verb(
    checkout: Path, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_bytes((checkout / "pyproject.toml").read_bytes())
    places = [Path(place) for place in sizes.SOURCES]
    names = [place if place.suffix else place / "folder" / "a.py" for place in places]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(WITHOUT_GOOD_DOCSTRINGS)
    command = ["ruff", "check", "--no-cache", "--output-format", "concise", "."]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    for name in names:
        for fault in (":1:1: D100", ":1:5: D103", ":6:5: D401", ":10:5: D417"):
            assert f"{name}{fault}" in done.stdout
