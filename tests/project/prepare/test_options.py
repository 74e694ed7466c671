"""What prepare.sh refuses before anything is made, and what it does when something is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project.prepare.conftest import write_script
from refusal import check_refused_command, refused

from gallery_lib.cli import prepare

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


@pytest.mark.parametrize("port", ["abc", "99999", "８０", "-1"])
def test_what_is_no_port_is_refused_before_anything_is_made(monkeypatch, port):
    monkeypatch.setenv("JUPYTER_PORT", port)
    with refused(None, f"JUPYTER_PORT={port!r}"):
        prepare.parse(["--lab"])
    assert not prepare.parse([]).lab


# --------------------------------------------------------------------------------------------------
# Something that it needs is missing


def test_without_a_python_of_3_11_it_says_so(copy):
    for name in ("python3", "python", "uv"):
        write_script(copy.bin / name, "#!/usr/bin/env bash\nexit 1\n")
    result = copy.run()
    check_refused_command(
        result.returncode, result.stderr, "no Python 3.11 or newer", "install one"
    )


def test_a_compiler_that_is_lacking_is_named_with_its_remedy_and_cxx_names_another(copy):
    (copy.bin / "g++").rename(copy.bin / "my-compiler")
    result = copy.run()
    check_refused_command(result.returncode, result.stderr, "no g++ -> apt-get install g++")
    assert not (copy.root / ".venv").exists()
    copy.env["CXX"] = "my-compiler"
    copy.prepare()


@pytest.mark.parametrize("root", [True, False])
def test_test_gets_what_some_tests_need_as_root_and_else_goes_on_without(copy, root):
    folder = copy.bin.parent / "disguise"
    folder.mkdir()
    user = 0 if root else 1000
    (folder / "sitecustomize.py").write_text(f"import os; os.geteuid = lambda: {user}")
    copy.env["PYTHONPATH"] = str(folder)
    write_script(
        copy.bin / "apt-get",
        "#!/usr/bin/env bash\n"
        'echo "apt-get $1 ${*: -1}" >> "$NOTES"\n'
        'touch "${0%/*}/chromium"\n'
        'chmod +x "${0%/*}/chromium"\n'
        '[[ ! -e "${0%/*}/hidden" ]] || mv "${0%/*}/hidden" "${0%/*}/g++"\n',
    )
    if root:  # who gets the compiler, too
        (copy.bin / "g++").rename(copy.bin / "hidden")
    result = copy.run("--test")
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert ("apt-get install g++\n" in notes) == ("apt-get install chromium\n" in notes) == root
    skipped = "the tests that need it will be skipped: no"
    assert (f"{skipped} chromium -> apt-get install chromium" in result.stdout) != root
    for name, package in {"tc": "iproute2", "slurmctld": "slurm-wlm", "munged": "munge"}.items():
        is_here = shutil.which(name, path=f"{copy.bin}:/usr/sbin:/sbin") is not None
        line = f"{skipped} {name} -> apt-get install {package}"
        assert (line in result.stdout) != is_here


def test_a_foreign_venv_is_left_alone(copy):
    (copy.root / ".venv").mkdir()
    (copy.root / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    result = copy.run()
    check_refused_command(result.returncode, result.stderr, "not made by prepare.sh")
    assert (copy.root / ".venv/pyvenv.cfg").read_text() == "home = /usr/bin\n"
