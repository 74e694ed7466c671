"""The notebook data_parallel: its parameters, its scripts, and what happens when a script fails.

It goes from one process to several.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.errors import RunFailed
from gallery_lib.launcher.script import run_script
from gallery_lib.notebooks.cells import data_parallel
from gallery_lib.system import hardware


def test_parameters_that_would_log_nothing_are_refused() -> None:
    with refused("images", 16, "log_steps=5"):
        data_parallel.settings({"images": 16, "batch_size": 8, "log_steps": 5, "processes": 1})


def test_an_unknown_parameter_is_named_with_the_closest_one() -> None:
    with refused("image", "`image`", "`images`"):
        data_parallel.settings({"image": 16})


def test_more_processes_than_devices_are_refused() -> None:
    devices = hardware.gpu_count() or hardware.cores()
    with refused("processes", devices + 1, f"{devices} device"):
        data_parallel.settings({"processes": devices + 1})


def test_a_missing_script_is_bad_input(tmp_path: Path) -> None:
    with refused("script", tmp_path / "none.py"):
        run_script(tmp_path / "none.py")


def test_a_failing_script_raises_with_its_last_lines(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("print('so far')\nraise ValueError('planted')\n")
    with pytest.raises(RunFailed, match=r"(?s)exit code 1.*so far.*ValueError: planted"):
        run_script(script)


def test_a_scripts_lines_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "prints.py"
    script.write_text("import sys\nprint('got', *sys.argv[1:])\n")
    assert run_script(script, ["--steps=3"]) == ["got --steps=3"]
    assert "$ python prints.py --steps=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after"),
    [("native", "accelerated"), ("accelerated", "several"), ("several", "mixed_precision")],
)
def test_each_script_differs_from_the_one_before_in_a_few_lines(
    checkout: Path, before: str, after: str
) -> None:
    old, new = (
        (checkout / "notebooks" / "data_parallel" / f"{name}.py").read_text().splitlines()
        for name in (before, after)
    )
    added, removed = set(new) - set(old), set(old) - set(new)
    assert 0 < len(added) <= 16 and len(removed) <= 10
