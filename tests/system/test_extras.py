"""The hint to install an extra names a command that works with the tools present."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.system import extras, paths


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout in a folder with a space, on a machine without uv."""
    root = tmp_path / "check out"
    root.mkdir()
    monkeypatch.setattr(paths, "checkout", lambda: root)
    monkeypatch.setattr(extras.shutil, "which", lambda name: None)
    return root


def test_uv_on_path_is_used_for_this_python_within_the_lock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"/usr/bin/{name}")
    (root / "requirements.lock").touch()
    words = [
        "/usr/bin/uv",
        "pip",
        "install",
        "--python",
        sys.executable,
        "-e",
        f"{root}[site]",
        "-c",
        f"{root}/requirements.lock",
    ]
    assert shlex.split(extras.install_command("site")) == words


def test_without_it_the_uv_that_prepare_sh_got_is(root: Path) -> None:
    uv = root / ".cache" / "uv-tool" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.touch()
    assert shlex.split(extras.install_command("site"))[:5] == [
        str(uv),
        "pip",
        "install",
        "--python",
        sys.executable,
    ]


@pytest.mark.parametrize(
    ("has_pip", "command"),
    [
        (True, [sys.executable, "-m", "pip", "install", "-e", "{root}[site]"]),
        (False, ["bash", "{root}/prepare.sh", "--test"]),
    ],
)
def test_without_any_uv_pip_is_and_without_pip_prepare_sh(
    root: Path, monkeypatch: pytest.MonkeyPatch, has_pip: bool, command: list[str]
) -> None:
    distributions = (object(),) if has_pip else ()
    monkeypatch.setattr(extras.importlib.metadata, "distributions", lambda name: distributions)
    assert shlex.split(extras.install_command("site")) == [
        word.format(root=root) for word in command
    ]


def test_the_hint_leaves_the_compiler_at_work(tmp_path: Path) -> None:
    """After a look for pip's module setuptools, which Inductor imports, refuses to be imported."""
    code = (
        "from gallery_lib.system import extras; extras.install_command('site'); import setuptools"
    )
    variables = {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
