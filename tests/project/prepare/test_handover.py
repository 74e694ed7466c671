"""What prepare.sh hands over to needs nothing that is not there before the environment is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
import gallery_lib.cli.prepare
import gallery_lib.notebooks.batch.parameters
rooms = {name.partition(".")[0] for name in sys.modules}
rooms = {name for name in rooms if not name.startswith("_sysconfigdata")}
print(*sorted(rooms - set(sys.stdlib_module_names) - {"__main__", "gallery_lib"}))
"""


def test_a_python_without_any_package_can_import_it(checkout: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORTS, str(checkout)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


@pytest.mark.parametrize("name", ["json.py", "tomllib.py", "pathlib.py"])
def test_files_of_the_folder_that_it_is_called_in_are_not_imported(copy, tmp_path, name) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / name).write_text("raise SystemExit(5)")
    assert copy.run(cwd=folder).returncode == 0


def test_a_safe_path_in_the_environment_changes_nothing(copy) -> None:
    copy.env["PYTHONSAFEPATH"] = "1"
    result = copy.run("--run", "resnet50", "-p", "batch", "3")
    assert result.returncode == 2
    assert "unknown parameter `batch`" in result.stderr
