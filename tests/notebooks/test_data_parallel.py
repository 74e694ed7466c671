"""The notebook data_parallel: its parameters, its scripts, and what happens when a script fails.

It goes from one process to several.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from refusal import refused

from gallery_lib.config import DataParallelNotebookConfig
from gallery_lib.errors import RunFailed
from gallery_lib.launcher.job import run_script, shown_script_command
from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
from gallery_lib.notebooks.cells import data_parallel
from gallery_lib.system import hardware


def test_parameters_that_would_log_nothing_are_refused() -> None:
    with refused("images", 16, "log_steps=5"):
        data_parallel.settings({"images": 16, "batch_size": 8, "log_steps": 5, "processes": 1})


def test_more_processes_than_devices_are_refused() -> None:
    devices = hardware.gpu_count() or hardware.cores()
    with refused("processes", devices + 1, f"{devices} device"):
        data_parallel.settings({"processes": devices + 1})


def test_a_failing_script_raises_with_its_last_lines(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("print('so far')\nraise ValueError('planted')\n")
    with pytest.raises(RunFailed, match=r"(?s)exit code 1.*so far.*ValueError: planted"):
        run_script(script)


def test_a_scripts_lines_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "prints.py"
    script.write_text("import sys\nprint('got', *sys.argv[1:])\n")
    assert run_script(script, ["--steps=3"]) == ["got --steps=3"]
    assert "$ python3 prints.py --steps=3" in capsys.readouterr().out


def test_a_command_is_shown_as_one_would_type_it_in_the_checkout(checkout: Path) -> None:
    script = checkout / "notebooks" / "data_parallel" / "several.py"
    shown = "notebooks/data_parallel/several.py --epochs=2"
    assert shown_script_command(script, ["--epochs=2"], processes=None) == f"python3 {shown}"
    assert shown_script_command(script, ["--epochs=2"], processes=4) == (
        f"torchrun --nproc_per_node=4 {shown}"
    )


def walk(**parameters: Any) -> DataParallelNotebookConfig:
    return data_parallel.settings({"processes": 1, "block_steps": 2, **parameters})


def test_every_script_takes_turns_and_mixed_precision_also_on_one_process() -> None:
    scripts = data_parallel._scripts_in_turns(dataclasses.replace(walk(), processes=2))
    assert {name: script.processes for name, script in scripts.items()} == {
        "native": None,
        "accelerated": None,
        "several (2)": 2,
        "mixed_precision (1)": None,
        "mixed_precision (2)": 2,
    }
    assert scripts["accelerated"].starts_like == "native"
    assert scripts["accelerated"].tolerance == LOSS_TOLERANCE["O0"]
    assert scripts["several (2)"].starts_like is None
    assert scripts["mixed_precision (1)"].starts_like == "native"
    assert scripts["mixed_precision (2)"].starts_like == "several (2)"
    assert len({tuple(script.arguments) for script in scripts.values()}) == 1


def test_where_there_is_one_device_no_script_takes_turns_twice() -> None:
    scripts = data_parallel._scripts_in_turns(walk())
    assert list(scripts) == ["native", "accelerated", "several (1)", "mixed_precision (1)"]
    assert scripts["several (1)"].starts_like == "native"


@pytest.mark.parametrize(("images", "taken"), [(128, 128), (100, 96), (8, 32)])
def test_the_images_of_the_turns_are_whole_batches_and_four_at_least(
    images: int, taken: int
) -> None:
    scripts = data_parallel._scripts_in_turns(walk(images=images, batch_size=8))
    assert {script.arguments[0] for script in scripts.values()} == {f"--images={taken}"}
