"""What prepare.sh says or does when something that it needs is missing."""

from __future__ import annotations

import pytest
from project.prepare.small_checkout import write_script


def test_without_a_python_of_3_11_it_says_so(copy):
    for name in ("python3", "python"):
        write_script(copy.bin / name, "#!/usr/bin/env bash\nexit 1\n")
    write_script(copy.bin / "uv", "#!/usr/bin/env bash\nexit 1\n")
    result = copy.run()
    assert result.returncode == 2
    assert "no Python 3.11 or newer" in result.stderr
    assert "-> install one" in result.stderr


def test_with_no_python_at_all_it_names_the_missing_compiler_as_well(copy):
    (copy.bin / "python3").unlink()
    (copy.bin / "g++").unlink()
    result = copy.run()
    assert result.returncode == 2
    assert "no Python 3.11 or newer" in result.stderr
    assert "no C++ compiler" in result.stderr
    assert not (copy.root / ".cache").exists()


def test_an_active_python_that_will_not_do_is_named_and_no_other_is_taken(copy):
    write_script(copy.bin / "python3.11", (copy.bin / "python3").read_text())
    write_script(copy.bin / "python3", "#!/usr/bin/env bash\nexit 1\n")
    result = copy.run("--into-current")
    assert result.returncode == 2
    assert "the active python3 is older than 3.11" in result.stderr
    (copy.bin / "python3").unlink()
    assert "no python3 on PATH" in copy.run("--into-current").stderr
    assert copy.run().returncode == 0


def test_everything_that_is_lacking_is_named_at_once_with_its_remedy(copy):
    (copy.bin / "g++").unlink()
    copy.env["PREPARE_MIN_DISK_GIB"] = "999999"
    result = copy.run()
    assert result.returncode == 2
    assert "no C++ compiler" in result.stderr
    assert "apt-get install g++" in result.stderr
    assert "999999 are needed" in result.stderr
    assert not (copy.root / ".venv").exists()


def test_root_on_debian_gets_the_compiler_and_refreshes_the_package_lists_only_when_it_must(copy):
    (copy.bin / "g++").rename(copy.bin / "hidden")
    copy.add_interpreter("python3", SEEMS_USER="0")
    write_script(
        copy.bin / "apt-get",
        """#!/usr/bin/env bash
echo "apt-get $1 ${*: -1}" >> "$NOTES"
if [[ $1 == update ]]; then touch lists; exit; fi
[[ -e lists ]] && mv "${0%/*}/hidden" "${0%/*}/g++"
""",
    )
    result = copy.run()
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert [line for line in notes.splitlines() if "apt-get" in line] == [
        "apt-get install g++",
        "apt-get update -qq",
        "apt-get install g++",
    ]

    (copy.bin / "g++").rename(copy.bin / "hidden")
    assert copy.run().returncode == 0
    assert "update" not in copy.notes()


@pytest.mark.parametrize("root", [True, False])
def test_test_gets_a_browser_and_network_tools_as_root_and_else_goes_on_without(copy, root):
    copy.add_interpreter("python3", SEEMS_USER="0" if root else "1000")
    write_script(
        copy.bin / "apt-get",
        "#!/usr/bin/env bash\n"
        'echo "apt-get $1 ${*: -1}" >> "$NOTES"\n'
        'touch "${0%/*}/chromium"\n'
        'chmod +x "${0%/*}/chromium"\n',
    )
    result = copy.run("--test")
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert ("apt-get install chromium" in notes) == ("apt-get install iproute2" in notes) == root
    assert "the tests of several hosts will be skipped -> apt-get install iproute2" in result.stdout
    assert (
        "the tests in a real browser will be skipped -> apt-get install chromium" in result.stdout
    ) != root


def test_a_compiler_named_by_cxx_will_do(copy):
    (copy.bin / "g++").rename(copy.bin / "my-compiler")
    copy.env["CXX"] = "my-compiler"
    assert copy.run().returncode == 0


def test_a_failed_install_ends_with_2_and_names_the_network(copy):
    (copy.root / "offline").touch()
    result = copy.run()
    assert result.returncode == 2
    assert "Without network" in result.stderr
    assert "UV_SYSTEM_CERTS=1" in result.stderr


def test_a_foreign_venv_is_left_alone(copy):
    (copy.root / ".venv").mkdir()
    (copy.root / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    result = copy.run()
    assert result.returncode == 2
    assert "not made by prepare.sh" in result.stderr
    assert (copy.root / ".venv/pyvenv.cfg").read_text() == "home = /usr/bin\n"
