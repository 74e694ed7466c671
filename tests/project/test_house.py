"""The tree keeps the rules of the house, and a breach of each rule is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import budgets, house

LONG_FILE = "x = 1\n" * 501
LONG_FUNCTION = "def walk():\n" + "    x = 1\n" * 80
LONG_METHOD = "class Stroll:\n" + "    def walk(self):\n" + "        x = 1\n" * 80


@pytest.fixture
def planted(tmp_path: Path):
    """Return plant(path, source), which writes a file into a small tree and returns the faults."""
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
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("benchmarks")  # the table's last row


def test_a_fault_ends_the_command_with_exit_code_1(tmp_path: Path, checkout: Path) -> None:
    script = tmp_path / "tests" / "project"
    script.mkdir(parents=True)
    for name in ("house.py", "import_direction.py", "budgets.py"):
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
        ("gallery_lib/train/loop.py", LONG_FILE, "gallery_lib/train/loop.py: 501 lines, at most"),
        ("launch_single_task.py", LONG_FILE, "launch_single_task.py: 501 lines, at most 500"),
        ("tests/train/test_loop.py", LONG_FILE, "tests/train/test_loop.py: 501 lines, at most 500"),
        ("benchmarks/a.py", LONG_FUNCTION, "benchmarks/a.py:walk: 81 lines, at most 80"),
        ("docs/a.py", LONG_METHOD, "docs/a.py:walk: 81 lines, at most 80"),
        ("notebooks/a/b.py", f"async {LONG_FUNCTION}", "notebooks/a/b.py:walk: 81 lines"),
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


def test_a_room_over_its_limit_is_a_fault(planted) -> None:
    for number in range(budgets.LIMITS["cluster"] // 400 + 1):
        messages = planted(f"gallery_lib/cluster/a{number}.py", "x = 1\n" * 400)
    assert len(messages) == 1 and messages[0].startswith("cluster: 1,600 lines, at most")


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
    places = [Path(place) for place in budgets.SOURCES]
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
