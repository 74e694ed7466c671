"""What prepare.sh says or does when something that it needs is missing."""

from __future__ import annotations

import shutil

import pytest
from project.prepare.conftest import write_script
from refusal import check_refused_command


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
