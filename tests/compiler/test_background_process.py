"""The fork that compiles can do a step's work, for which its parent has threads and it has none."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from compiler.work_of_a_step import WORK
from json_script import printed_by

from gallery_lib.compiler.background_process import CompilerProcess

SCRIPT = Path(__file__).with_name("work_of_a_step.py")


@pytest.fixture(scope="module")
def faults() -> dict[str, str]:
    """Return what came of each kind of work in a fork: why it failed, or ""."""
    return printed_by(SCRIPT, timeout=500)


@pytest.mark.parametrize("name", WORK)
def test_the_fork_does_the_work_of_a_step(name: str, faults: dict[str, str]) -> None:
    assert faults[name] == ""


def test_the_fork_writes_code_for_the_threads_of_its_parent() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        process = CompilerProcess(lambda: os._exit(torch.get_num_threads()), 0)
    finally:
        torch.set_num_threads(before)
    assert end_of(process) == 3


def test_a_fork_that_is_ended_by_a_signal_says_where_it_was() -> None:
    def ended_here() -> None:
        os.abort()

    process = CompilerProcess(ended_here, 0)
    assert end_of(process) < 0
    fault = process.fault()
    assert fault.startswith(f'it was ended by SIGABRT in "{__file__}"')
    assert fault.endswith("in ended_here")


def end_of(process: CompilerProcess) -> int:
    while (code := process.exit_code()) is None:
        time.sleep(0.02)
    return code
