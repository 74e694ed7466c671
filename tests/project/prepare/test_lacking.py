"""What prepare.sh says or does when something that it needs is missing."""

from __future__ import annotations

from project.prepare.small_checkout import write_script


def test_without_a_python_of_3_11_it_says_so(copy):
    for name in ("python3", "python"):
        write_script(copy.bin / name, "#!/usr/bin/env bash\nexit 1\n")
    write_script(copy.bin / "uv", "#!/usr/bin/env bash\nexit 1\n")
    result = copy.run()
    assert result.returncode == 2
    assert "no Python 3.11 or newer" in result.stderr
    assert "-> install one" in result.stderr


def test_a_compiler_that_is_lacking_is_named_with_its_remedy(copy):
    (copy.bin / "g++").unlink()
    result = copy.run()
    assert result.returncode == 2
    assert "no g++ -> apt-get install g++" in result.stderr
    assert not (copy.root / ".venv").exists()


def test_a_compiler_named_by_cxx_will_do(copy):
    (copy.bin / "g++").rename(copy.bin / "my-compiler")
    copy.env["CXX"] = "my-compiler"
    assert copy.run().returncode == 0


def test_a_foreign_venv_is_left_alone(copy):
    (copy.root / ".venv").mkdir()
    (copy.root / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    result = copy.run()
    assert result.returncode == 2
    assert "not made by prepare.sh" in result.stderr
    assert (copy.root / ".venv/pyvenv.cfg").read_text() == "home = /usr/bin\n"
