"""A script of the checkout continues in prepare.sh's environment, whatever Python starts it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path
    for pattern in ("launch_single_task.py", "data_prep/*.py", "benchmarks/*.py", "notebooks/*.py")
    for path in sorted(CHECKOUT.glob(pattern))
    if "__main__" in path.read_text()
]
FIRST = (
    "__init__.py",
    "__main__.py",
    "errors.py",
    "system/__init__.py",
    "system/prepared_python.py",
    "system/paths.py",
)
"""Modules that are imported before it is known whether this Python will do."""
FIGURES_FILE = CHECKOUT / "benchmarks" / "figures_file.py"
READ_BY_ANY_PYTHON = [*SCRIPTS, FIGURES_FILE, *(CHECKOUT / "gallery_lib" / name for name in FIRST)]

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
    """Return a folder with a space that has the launcher and what it imports first.

    It has no environment.
    """
    root = tmp_path / "check out"
    root.mkdir()
    shutil.copy(CHECKOUT / "launch_single_task.py", root)
    copy_first(root)
    return root


def make_environment(root: Path, python: str) -> Path:
    """Write the script `python` as the one of the environment."""
    path = root / ".venv" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(python)
    path.chmod(0o755)
    return path


def run(
    *words: str | Path, cwd: Path, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, **(environment or {})},
    )


def test_the_process_goes_on_there_with_the_same_words_input_and_exit_code(
    checkout: Path, bare_python: Path
) -> None:
    make_environment(checkout, ANSWERS)
    with subprocess.Popen(
        [str(bare_python), "-u", "launch_single_task.py", "--model", "a b"],
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate("what is typed\n", timeout=60)
    assert out.splitlines() == [
        str(process.pid),
        "-u",
        "launch_single_task.py",
        "--model",
        "a b",
        "what is typed",
    ]
    assert err == "Using the environment that prepare.sh made: .venv/bin/python\n"
    assert process.returncode == 7


def test_the_line_names_it_from_the_folder_where_the_command_was_given(
    checkout: Path, bare_python: Path
) -> None:
    make_environment(checkout, ANSWERS)
    (checkout / "notebooks").mkdir()
    done = run(bare_python, "../launch_single_task.py", cwd=checkout / "notebooks")
    assert done.stderr == "Using the environment that prepare.sh made: ../.venv/bin/python\n"


def test_the_gallery_command_is_a_module_that_does_the_same(
    checkout: Path, bare_python: Path
) -> None:
    make_environment(checkout, ANSWERS)
    assert run(bare_python, "-m", "gallery_lib", "list", cwd=checkout).stdout.splitlines()[1:] == [
        "-m",
        "gallery_lib",
        "list",
    ]


def test_without_an_environment_one_line_names_prepare_sh(
    checkout: Path, bare_python: Path
) -> None:
    done = run(bare_python, "launch_single_task.py", cwd=checkout)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: {bare_python} has no torch, and prepare.sh has made no environment here. "
        "Run: bash prepare.sh\n"
    )


def test_an_environment_that_lacks_torch_as_well_is_not_tried_again_and_again(
    checkout: Path, bare_python: Path
) -> None:
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
    shutil.copy(
        CHECKOUT / "gallery_lib" / "system" / "processes.py", checkout / "gallery_lib" / "system"
    )
    script = checkout / "when.py"
    script.write_text(WHEN)
    done = run(bare_python, script, cwd=checkout)
    assert float(done.stdout) > 1, done.stderr


def old_pythons() -> list[str]:
    """Return the Pythons of this machine that are too old for the gallery."""
    candidates = [shutil.which(f"python3.{minor}") for minor in (8, 9, 10)]
    return [
        python
        for python in candidates
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    ]


def test_an_older_python_is_left_likewise(checkout: Path) -> None:
    pythons = old_pythons()
    if not pythons:
        pytest.skip("no Python 3.8 to 3.10 here")
    for python in pythons:
        done = run(python, "launch_single_task.py", cwd=checkout)
        assert done.returncode == 2
        assert re.search(
            r"is Python 3\.\d+, older than 3\.11, and prepare.sh has made no environment here",
            done.stderr,
        ), done.stderr
    make_environment(checkout, ANSWERS)
    for python in pythons:
        done = run(python, "launch_single_task.py", "x", cwd=checkout)
        assert done.stdout.splitlines()[1:] == ["launch_single_task.py", "x"]


@pytest.mark.parametrize(
    "path", READ_BY_ANY_PYTHON, ids=lambda path: path.relative_to(CHECKOUT).as_posix()
)
def test_python_3_8_can_read_it(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(CHECKOUT).as_posix())
def test_each_script_of_the_checkout_names_prepare_sh_to_a_bare_python(
    script: Path, bare_python: Path, tmp_path: Path
) -> None:
    copy = tmp_path / script.relative_to(CHECKOUT)
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(script, copy)
    if script.parent.name == "benchmarks":  # they continue there when they import it
        shutil.copy(FIGURES_FILE, copy.parent)
    copy_first(tmp_path)
    done = run(bare_python, copy, cwd=copy.parent)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "Run: bash" in done.stderr
