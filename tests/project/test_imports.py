"""Imports point downwards, the checker of that works, and importing the package costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def check(package: Path, checkout: Path) -> subprocess.CompletedProcess[str]:
    script = checkout / "tests/project/import_direction.py"
    return subprocess.run(
        [sys.executable, str(script), str(package)], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def planted(tmp_path: Path, checkout: Path):
    """Return plant("measure/turns.py", "import x"), which writes a module and checks all modules.

    The module is written into a small gallery_lib.
    """
    package = tmp_path / "gallery_lib"

    def plant(name: str, source: str) -> subprocess.CompletedProcess[str]:
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return check(package, checkout)

    return plant


def test_all_imports_of_the_package_point_downwards(checkout):
    result = check(checkout / "gallery_lib", checkout)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("config.py", "import gallery_lib.acceleration"),
        ("config.py", "from gallery_lib.acceleration import accelerate"),
        ("config.py", "from gallery_lib import acceleration"),
        ("config.py", "from . import acceleration"),
        ("data/loader.py", "from ..acceleration import accelerate"),
        ("data/loader.py", "def f():\n    from gallery_lib.tasks.registry import TASKS"),
        ("comm/hooks.py", "import importlib\nimportlib.import_module('gallery_lib.train.loop')"),
        ("compiler/registry.py", "from gallery_lib.acceleration import accelerate"),
        ("train/loop.py", "import gallery_lib\ngallery_lib.launcher.launch()"),
        ("train/loop.py", "if True:\n    import gallery_lib.launcher.job as launcher"),
    ],
)
def test_an_upward_import_is_caught_with_its_line(planted, module, source):
    result = planted(module, source)
    assert result.returncode == 1
    assert f"{module}:{len(source.splitlines())}:" in result.stdout
    assert "upwards" in result.stdout


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("acceleration.py", "from gallery_lib.compiler.registry import compile_model"),
        (
            "comm/hooks.py",
            "from gallery_lib.kernels.compression import quantize\nfrom .buckets import plan",
        ),
        ("config.py", "from gallery_lib.config.options import option\nimport torch"),
        ("cli/main.py", "from gallery_lib import notebooks, report\nfrom ..config import Config"),
        (
            "launcher/job.py",
            "import gallery_lib\nprint(gallery_lib.__file__, gallery_lib.train.loop)",
        ),
        ("tasks/resnet50.py", "from ..data import imagenet\nfrom .registry import Task"),
        ("__init__.py", "import gallery_lib.cli.main"),
    ],
)
def test_downward_imports_and_those_within_a_room_pass(planted, module, source):
    result = planted(module, source)
    assert (result.returncode, result.stdout) == (0, "")


def test_rooms_side_by_side_do_not_import_each_other(planted):
    assert (
        "neighbour"
        in planted(
            "optim/fused.py", "def f():\n    from gallery_lib.comm.ddp import distribute"
        ).stdout
    )


def test_the_package_does_not_import_what_stands_on_it(planted):
    assert "stands on" in planted("cli/main.py", "import benchmarks.resnet").stdout


def test_a_module_without_a_floor_fails_and_says_where_to_list_it(planted):
    result = planted("attic.py", "")
    assert result.returncode == 1
    assert "FLOORS in tests/project/import_direction.py" in result.stdout


def test_importing_the_package_does_not_import_torch_or_change_the_environment(checkout):
    code = (
        "import os, sys\n"
        "before = dict(os.environ)\n"
        "import gallery_lib, gallery_lib.config, gallery_lib.config.options, "
        "gallery_lib.system.paths, gallery_lib.errors\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'imported too much'\n"
        "assert dict(os.environ) == before\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=checkout
    )
    assert result.returncode == 0, result.stderr
