"""Wording of the messages about wrong input, one of each family.

All other tests recognise an error by its type, its `parameter` and the values in it, so that a
message can be worded better in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from gallery_lib import accelerate, tasks
from gallery_lib.cluster import network
from gallery_lib.config import TrainConfig, switches
from gallery_lib.config.options import CommandLine, check_value
from gallery_lib.errors import InputError
from gallery_lib.launcher import preflight
from gallery_lib.notebooks.reports import read_report


def environment_variable(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(switches.KERNELS_VARIABLE, "yes")
        patch.setenv(switches.COMPILER_VARIABLE, "1")
        switches.kernels_enabled()


def finished_run(folder: Path) -> None:
    (folder / "results.json").touch()
    preflight.checked_folder(str(folder))


def damaged_file(folder: Path) -> None:
    (folder / "report.json").write_text('{"schema": 3, "notebooks": []}')
    read_report(folder)


REFUSED: dict[str, Callable[[Path], object]] = {
    "option_out_of_range": lambda folder: check_value(TrainConfig, "batch_size", 0),
    "value_not_offered": lambda folder: check_value(TrainConfig, "amp_level", "O2"),
    "unknown_option": lambda folder: CommandLine("train", "", (TrainConfig,)).parse(
        ["--batch_sise", "4"]
    ),
    "environment_variable": environment_variable,
    "unknown_task": lambda folder: tasks.get("resnet5"),
    "missing_data": lambda folder: tasks.data_of(TrainConfig(data_dir=str(folder / "none"))),
    "finished_run": finished_run,
    "damaged_file": damaged_file,
    "argument_of_accelerate": lambda folder: accelerate(nn.Linear(2, 2), optimiser=None),
    "rate_of_a_lab": lambda folder: network.bits_per_second("fast"),
}
MESSAGES = {
    "option_out_of_range": "batch_size=0 must be a whole number between 1 and 1000000000.",
    "value_not_offered": "amp_level='O2' must be auto or O0 or O1.",
    "unknown_option": (
        "unknown option `--batch-sise`. Did you mean `--batch-size`? See train --help."
    ),
    "environment_variable": "environment variable GALLERY_KERNELS='yes' must be 0 or 1.",
    "unknown_task": (
        "model='resnet5' is not a task. Did you mean `resnet50`? "
        f"Known: {', '.join(tasks.names())}; or FILE.py:NAME."
    ),
    "missing_data": (
        "The data folder FOLDER/none does not exist. Give a folder with train/ and val/ in it. "
        "Mock data, in a folder of its own: python3 data_prep/mock_imagenet.py"
    ),
    "finished_run": (
        "run_dir=FOLDER holds a finished run. Name a new folder, or move that one away."
    ),
    "damaged_file": (
        "FOLDER/report.json is damaged, or of another version: notebooks: "
        "Expected `object`, got `array`. "
        "Run the batch again."
    ),
    "argument_of_accelerate": (
        "accelerate() has no argument `optimiser`. Did you mean `optimizer`? "
        "It takes model, loader, optimizer, scheduler, config."
    ),
    "rate_of_a_lab": (
        "rate='fast' must be a number with kbit, mbit or gbit behind it, in bits per second: "
        "100mbit, say."
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_message_says_what_is_wrong_with_which_value_and_what_to_do(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        REFUSED[name](tmp_path)
    assert str(raised.value).replace(str(tmp_path), "FOLDER") == MESSAGES[name]
