"""A small copy of a checkout for each test, which the real prepare.sh runs in.

PATH holds a few tools, this interpreter as python3, and a uv that records its arguments. This uv
makes a .venv whose python records its arguments, too. Nothing is installed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from worker_processes import wait_until

TOOLS = ("bash", "cat", "dirname", "env")
"""What a machine has besides Python, a compiler and uv, as far as prepare.sh needs it."""
TOOLS_OF_FAKES = ("chmod", "cp", "mkdir", "mv", "sleep", "touch")
"""What the scripts below and those of tests need."""

UV = """#!/usr/bin/env bash
echo "uv $*" >> "$NOTES"
echo "cache ${UV_CACHE_DIR-}" >> "$NOTES"
case "$1 $2" in
    "--version "*) echo "uv 0.9.0" ;;
    "venv "*)
        venv=${*: -1}
        mkdir -p "$venv/bin"
        printf 'prompt = gallery\\n' > "$venv/pyvenv.cfg"
        cp "$VENV_PYTHON" "$venv/bin/python" ;;
    "pip install")
        if [[ -e forking ]]; then sleep 60 & echo $! > forked; touch started; wait; fi
        if [[ -e slow ]]; then touch started; exec sleep "$(cat slow)"; fi
        if [[ -e offline ]]; then exit 1; fi ;;
esac
"""
VENV_PYTHON = """#!/usr/bin/env bash
if [[ -e endless && "$*" == "-m gallery_lib run "* ]]; then touch started; sleep 300; fi
echo "python $*" >> "$NOTES"
if [[ -e failing && "$*" == *"-m gallery_lib run "* ]]; then exit 3; fi
"""


def hear_signals() -> None:
    """Undo that signals are ignored, as they are below `nohup`, which prepare.sh leaves so."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Checkout:
    """A copy of what prepare.sh needs, and the environment that it runs in."""

    root: Path
    bin: Path
    env: dict[str, str]

    def start(self, *options: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            ["bash", str(self.root / "prepare.sh"), *options],
            **{"cwd": cwd or self.root, "env": self.env, "text": True, **pipes},
            stdin=subprocess.DEVNULL,
            # A signal can go to the script and its children, as Ctrl-C does.
            start_new_session=True,
            preexec_fn=hear_signals,
        )

    def run(self, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, cwd=cwd)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def prepare(self, *options: str, cwd: Path | None = None, says: str = "") -> str:
        """Run the script to a good end, and return what uv and .venv's python were asked."""
        self.notes()
        result = self.run(*options, cwd=cwd)
        assert result.returncode == 0, result.stderr
        assert says in result.stdout
        return self.notes()

    def notes(self) -> str:
        """Return what uv and .venv's python were asked since the last look."""
        path = Path(self.env["NOTES"])
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def wait_for(self, name: str) -> None:
        wait_until((self.root / name).exists, seconds=30)
        (self.root / name).unlink()


NOTEBOOK = """{"nbformat": 4, "nbformat_minor": 5, "metadata": \
{"gallery": {"options": "NotebookConfig"}, "kernelspec": {"name": "gallery"}}, "cells": [{
  "cell_type": "code", "metadata": {"tags": ["parameters"]}, "execution_count": null, "outputs": [],
  "source": "profile: str = 'auto'\\nbatch_size: int | None = None"}]}
"""


@pytest.fixture
def copy(tmp_path: Path, checkout: Path) -> Checkout:
    """Return a small checkout where a test may run prepare.sh and break things.

    Its folder has a space in its name, since some folders have one.
    """
    root, bin = tmp_path / "check out", tmp_path / "bin"
    (root / "notebooks").mkdir(parents=True)
    (root / "data_prep").mkdir()
    (root / "data_prep" / "mock_imagenet.py").touch()
    ignored = shutil.ignore_patterns("__pycache__", "*.cu", "*.cpp")
    shutil.copytree(checkout / "gallery_lib", root / "gallery_lib", ignore=ignored)
    bin.mkdir()
    for name in ("prepare.sh", "pyproject.toml", "requirements.lock", "launch_single_task.py"):
        shutil.copy(checkout / name, root)
    for name in ("resnet50", "vgg16"):
        (root / f"notebooks/{name}.ipynb").write_text(NOTEBOOK)
    for tool in (*TOOLS, *TOOLS_OF_FAKES):
        (bin / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool} here"))
    write_script(bin / "python3", f'#!/usr/bin/env bash\nexec "{sys.executable}" "$@"\n')
    write_script(bin / "g++", "#!/usr/bin/env bash\n")
    write_script(bin / "uv", UV)
    write_script(tmp_path / "venv-python", VENV_PYTHON)
    env = {"PATH": str(bin), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"NOTES": str(tmp_path / "notes"), "VENV_PYTHON": str(tmp_path / "venv-python")}
    return Checkout(root, bin, env)
