"""What prepare.sh refuses before anything is made, and what it needs until then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from refusal import check_refused_command

IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
import gallery_lib.cli.prepare
import gallery_lib.notebooks.plan
rooms = {name.partition(".")[0] for name in sys.modules}
rooms = {name for name in rooms if not name.startswith("_sysconfigdata")}
print(*sorted(rooms - set(sys.stdlib_module_names) - {"__main__", "gallery_lib"}))
"""


def test_a_python_without_any_package_can_import_it(checkout: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORTS, str(checkout)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_files_of_the_folder_that_it_is_called_in_are_not_imported(copy, tmp_path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("json.py", "tomllib.py", "pathlib.py"):
        (folder / name).write_text("raise SystemExit(5)")
    copy.env["PYTHONSAFEPATH"] = "1"
    copy.prepare(cwd=folder)


def test_it_is_valid_bash(checkout):
    for script in ("prepare.sh", ".ci/run"):
        subprocess.run(["bash", "-n", checkout / script], check=True)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (["--tset"], ["--tset", "--test"]),
        (["--test=yes"], ["--test", "'yes'"]),
        (["--run", "--test"], ["--run", "one argument"]),
        (["--run", "resnet5"], ["--run 'resnet5'", "Did you mean `resnet50`?"]),
        (["--run", "nothing-like-it"], ["--run 'nothing-like-it'", "resnet50 vgg16"]),
        (["--run", ""], ["--run"]),
        (["--run", "resnet50", "-p", "batch_size"], ["-p", "2 arguments"]),
        (["--run", "resnet50", "-p", "batch", "3"], ["prepare.sh: ", "`batch`", "`batch_size`"]),
        (
            ["--run", "resnet50", "-p", "batch_size", "many"],
            ["prepare.sh: ", "batch_size='many'", "whole number"],
        ),
        (["-p", "batch_size", "20"], ["-p", "--run"]),
        (["--lab", "--test"], ["--lab", "--test", "together"]),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_what_to_do_before_anything_is_made(
    copy, given, values
):
    result = copy.run(*given)
    check_refused_command(result.returncode, result.stderr, *values)
    assert not (copy.root / ".venv").exists()
