"""A script of the checkout continues in prepare.sh's environment, whatever Python starts it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from project.prepare.conftest import write_script

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path
    for pattern in ("launch_single_task.py", "data_prep/*.py", "benchmarks/*.py", "notebooks/*.py")
    for path in sorted(CHECKOUT.glob(pattern))
    if "__main__" in path.read_text()
]
FIRST = ("__init__.py", "__main__.py", "errors.py")
FIRST += ("system/__init__.py", "system/prepared_python.py", "system/paths.py")
"""Modules that are imported before it is known whether this Python will do."""
FIGURES_FILE = CHECKOUT / "benchmarks" / "figures_file.py"

ANSWERS = """#!/usr/bin/env bash
printf '%s\\n' "$$" "$@"
cat
exit 7
"""

WHEN = """
from gallery_lib.system.prepared_python import run_in_prepared_environment

run_in_prepared_environment()

import time
from gallery_lib.system.processes import began_at, now

print(now() - began_at())
"""


def copy_first(root: Path) -> None:
    """Copy what is imported first into a package at `root`."""
    for name in FIRST:
        (root / "gallery_lib" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "gallery_lib" / name, root / "gallery_lib" / name)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python without any packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder that has the launcher and what it imports first, and no environment."""
    root = tmp_path / "check out"
    copy_first(root)
    shutil.copy(CHECKOUT / "launch_single_task.py", root)
    return root


def make_environment(root: Path, python: str) -> None:
    """Write the script `python` as the one of the environment."""
    (root / ".venv" / "bin").mkdir(parents=True)
    write_script(root / ".venv" / "bin" / "python", python)


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return subprocess.run([str(word) for word in words], cwd=cwd, env=kept, timeout=60, **pipes)


def test_the_process_goes_on_there_with_the_same_words_input_and_exit_code(
    checkout: Path, bare_python: Path
) -> None:
    make_environment(checkout, ANSWERS)
    (checkout / "notebooks").mkdir()
    words = [str(bare_python), "-u", "../launch_single_task.py", "--model", "a b"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, cwd=checkout / "notebooks", text=True, **pipes) as process:
        out, err = process.communicate("what is typed\n", timeout=60)
    assert out.splitlines() == [str(process.pid), *words[1:], "what is typed"]
    assert err == "Using the environment that prepare.sh made: ../.venv/bin/python\n"
    assert process.returncode == 7
    done = run(bare_python, "-m", "gallery_lib", "list", cwd=checkout)
    assert done.stdout.splitlines()[1:] == ["-m", "gallery_lib", "list"]


def test_without_an_environment_or_with_one_that_lacks_torch_as_well_prepare_sh_is_named(
    checkout: Path, bare_python: Path
) -> None:
    done = run(bare_python, "launch_single_task.py", cwd=checkout)
    lacking = "has no torch, and prepare.sh has made no environment here. Run: bash prepare.sh"
    assert (done.returncode, done.stderr) == (2, f"error: {bare_python} {lacking}\n")
    venv.create(checkout / ".venv", symlinks=True)
    done = run(bare_python, "launch_single_task.py", cwd=checkout)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("Using the environment")
    assert "the environment that prepare.sh makes is incomplete. Run: bash prepare.sh" in second


def test_a_python_that_has_what_it_takes_goes_on_without_a_word(tmp_path: Path) -> None:
    done = run(sys.executable, CHECKOUT / "launch_single_task.py", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gallery_lib ")


def test_the_start_of_a_run_counts_from_the_beginning_of_the_command(
    checkout: Path, bare_python: Path
) -> None:
    make_environment(checkout, f'#!/usr/bin/env bash\nsleep 1\nexec "{sys.executable}" "$@"\n')
    name = "gallery_lib/system/processes.py"
    shutil.copy(CHECKOUT / name, checkout / name)
    (checkout / "when.py").write_text(WHEN)
    done = run(bare_python, "when.py", cwd=checkout)
    assert float(done.stdout) > 1, done.stderr


def test_each_script_of_the_checkout_names_prepare_sh_to_a_bare_python(
    bare_python: Path, tmp_path: Path
) -> None:
    copy_first(tmp_path)
    for script in SCRIPTS:
        copy = tmp_path / script.relative_to(CHECKOUT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(script, copy)
        if script.parent.name == "benchmarks":  # they continue there when they import it
            shutil.copy(FIGURES_FILE, copy.parent)
        done = run(bare_python, copy, cwd=copy.parent)
        assert done.returncode == 2, script
        assert done.stderr.count("\n") == 1 and "Run: bash" in done.stderr, script
