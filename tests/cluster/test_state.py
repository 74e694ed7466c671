"""The state file of a lab is written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.cluster import cleanup, state
from gallery_lib.cluster.state import CpuShare, Host, State

LAB = State(
    "mine",
    "0123abcd",
    1.0,
    (Host(0, "10.77.0.1", 10**9, 1.0), Host(1, "10.77.0.2", 10**9, 1.0)),
    CpuShare("cores", cores=((0,), (1,))),
)


def test_what_is_written_is_read_back() -> None:
    state.write(LAB)
    assert state.read("mine") == LAB
    assert state.names() == ["mine"]


def test_a_lab_of_the_same_name_is_not_forgotten_with_an_earlier_one() -> None:
    later = dataclasses.replace(LAB, id="ffffffff")
    state.write(later)
    state.delete(LAB)
    assert state.read("mine") == later
    state.delete(later)
    assert state.read("mine") is None


def test_the_file_of_a_lab_whose_keeper_is_gone_is_cleared() -> None:
    state.write(dataclasses.replace(LAB, keeper=1))  # a process that is there, but keeps no lab
    with state.locked():
        assert cleanup.clear_leftovers() == ["mine"]
    assert state.names() == []


def test_what_a_killed_writer_left_is_deleted() -> None:
    state.write(LAB)
    (state.folder() / ".mine.json.0a1b2c").write_text("{")
    with state.locked():
        cleanup.clear_leftovers()
    assert [path.name for path in state.folder().iterdir()] == [".lock"]


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"schema": 1, "cpu": {}}), "[]"])
def test_a_damaged_file_is_named_with_what_to_do(content: str) -> None:
    path: Path = state.file_of("mine")
    path.write_text(content)
    with refused(path, "Delete it"):
        state.read("mine")


def test_a_file_of_another_schema_is_refused() -> None:
    path = state.file_of("mine")
    path.write_text('{"schema": 99}')
    with refused("schema", path, 99):
        state.read("mine")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "x" * 41])
def test_a_name_that_is_no_name_of_a_file_is_refused(name: str) -> None:
    with refused("name", repr(name)):
        state.read(name)


def test_one_at_a_time_may_change_a_lab() -> None:
    order = []

    def second() -> None:
        with state.locked():
            order.append("second")

    with state.locked():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
