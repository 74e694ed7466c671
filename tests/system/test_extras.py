"""The hint to install an extra names a command that works with the tools present."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from gallery_lib.system import extras, paths


@pytest.mark.parametrize("uv", ["on PATH", "of prepare.sh", "none"])
def test_an_extra_is_installed_into_this_python_by_uv_or_else_pip(
    uv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, own = tmp_path / "check out", tmp_path / "uv-tool" / "bin" / "uv"
    monkeypatch.setattr(paths, "checkout", lambda: root)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    found = "/usr/bin/uv" if uv == "on PATH" else None
    monkeypatch.setattr(extras.shutil, "which", lambda name: found)
    if uv == "of prepare.sh":
        own.parent.mkdir(parents=True)
        own.touch()
    by_uv = [found or str(own), "pip", "install", "--python", sys.executable]
    start = [sys.executable, "-m", "pip", "install"] if uv == "none" else by_uv
    assert shlex.split(extras.install_command("site")) == [*start, "-e", f"{root}[site]"]
