"""The tree keeps the rules of the house, and a breach of each rule is found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import budgets, house

LONG_FILE = "x = 1\n" * 501
LONG_FUNCTION = "def walk():\n" + "    x = 1\n" * 80
LONG_METHOD = "class Stroll:\n" + "    def walk(self):\n" + "        x = 1\n" * 80
Plant = Callable[[str, str], list[str]]


@pytest.fixture
def planted(tmp_path: Path) -> Plant:
    """Return plant(path, source), which writes a file into a small tree and returns the faults."""

    def plant(name: str, source: str) -> list[str]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        budgets._measured.cache_clear()
        return house.faults(tmp_path)

    return plant


def test_the_command_checks_the_tree_and_ends_with_1_for_a_fault(
    checkout: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkout / "tests" / "project", tmp_path / "tests" / "project")
    (tmp_path / "gallery_lib" / "attic").mkdir(parents=True)
    (tmp_path / "gallery_lib" / "attic" / "old.py").touch()
    words = [sys.executable, "-m", "tests.project.house"]
    here, elsewhere = (
        subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
        for folder in (checkout, tmp_path)
    )
    assert (here.returncode, here.stderr) == (0, ""), here.stdout
    assert here.stdout.splitlines()[-1].startswith("benchmarks")  # the table's last row
    assert elsewhere.returncode == 1
    assert "`attic` has no floor" in elsewhere.stdout


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        ("gallery_lib/attic/old.py", "", "`attic` has no floor yet: list it in FLOORS in tests"),
        ("gallery_lib/train/loop.py", LONG_FILE, "gallery_lib/train/loop.py: 501 lines, at most"),
        ("launch_single_task.py", LONG_FILE, "launch_single_task.py: 501 lines, at most 500"),
        ("tests/train/test_loop.py", LONG_FILE, "tests/train/test_loop.py: 501 lines, at most 500"),
        ("benchmarks/a.py", LONG_FUNCTION, "benchmarks/a.py:walk: 81 lines, at most 80"),
        ("docs/a.py", LONG_METHOD, "docs/a.py:walk: 81 lines, at most 80"),
        ("notebooks/a/b.py", f"async {LONG_FUNCTION}", "notebooks/a/b.py:walk: 81 lines"),
        ("gallery_lib/train/loop.py", LONG_FILE.removesuffix("x = 1\n"), ""),
        ("data_prep/a.py", LONG_FUNCTION.removesuffix("    x = 1\n"), ""),
        ("tests/train/test_loop.py", LONG_FUNCTION, ""),
        ("runs/copy.py", LONG_FILE, ""),
    ],
)
def test_what_has_no_room_or_is_too_long_is_found(
    planted: Plant, name: str, source: str, fault: str
) -> None:
    messages = planted(name, source)
    assert len(messages) == bool(fault) and all(fault in message for message in messages)


def test_a_room_over_its_limit_is_a_fault(planted: Plant, tmp_path: Path) -> None:
    for number in range(budgets.LIMITS["cluster"] // 400 + 1):
        messages = planted(f"gallery_lib/cluster/a{number}.py", "x = 1\n" * 400)
    assert len(messages) == 1 and messages[0].startswith("cluster: ")


UPWARDS = [
    ("config/a.py", "import gallery_lib.acceleration"),
    ("config/a.py", "from gallery_lib import acceleration"),
    ("config/a.py", "from .. import acceleration"),
    ("data/loader.py", "def f():\n    from gallery_lib.tasks.registry import TASKS"),
    ("comm/hooks.py", "import importlib\nimportlib.import_module('gallery_lib.train.loop')"),
    ("train/loop.py", "import gallery_lib\ngallery_lib.launcher.launch()"),
    ("train/loop.py", "if True:\n    import gallery_lib.launcher.job as launcher"),
]


@pytest.mark.parametrize(
    ("name", "source", "fault"),
    [
        *[(*one, "upwards") for one in UPWARDS],
        ("optim/fused_cpu.py", "from gallery_lib.comm.ddp import distribute", "neighbour"),
        ("cli/main.py", "import benchmarks.resnet", "stands on"),
        ("acceleration/a.py", "from gallery_lib.compiler.registry import compile_model", ""),
        ("comm/hooks.py", "from gallery_lib.kernels import wire\nfrom .buckets import plan", ""),
        ("config/a.py", "from gallery_lib.config.options import option\nimport torch", ""),
        ("cli/main.py", "from gallery_lib import notebooks, report\nfrom ..config import C", ""),
        ("launcher/a.py", "import gallery_lib\nprint(gallery_lib.__file__, gallery_lib.train)", ""),
        ("__init__.py", "import gallery_lib.cli.main", ""),
    ],
)
def test_an_import_that_does_not_point_downwards_is_found_with_its_line(
    planted: Plant, name: str, source: str, fault: str
) -> None:
    messages = planted(f"gallery_lib/{name}", source)
    line = f"{name}:{len(source.splitlines())}: "
    assert len(messages) == bool(fault)
    assert all(line in message and fault in message for message in messages)
