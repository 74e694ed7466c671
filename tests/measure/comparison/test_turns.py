"""Turns are handed out over a socket that only this user can reach."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from gallery_lib.errors import RunFailed
from gallery_lib.measure.comparison.turns import TurnClient, TurnServer


def test_each_rank_of_a_run_waits_for_the_runs_turn() -> None:
    server = TurnServer()
    taken: list[str] = []

    def train(name: str) -> None:
        client = TurnClient(server.address, name)
        for _ in range(2):
            client.wait()
            taken.append(name)

    ranks = [threading.Thread(target=train, args=[name]) for name in ("a", "b", "b")]
    for rank in ranks:
        rank.start()
    counts = {"a": 1, "b": 2}
    for name, count in counts.items():
        server.wait_idle(name, count, lambda: None)
    for name, expected in (("b", ["b", "b"]), ("a", ["b", "b", "a"])):
        server.go(name)
        server.wait_idle(name, counts[name], lambda: None)
        assert taken == expected
    for name in counts:
        server.go(name)
    for rank in ranks:
        rank.join(5)
    assert sorted(taken[3:]) == ["a", "b", "b"]
    server.close()


def test_the_socket_lies_in_a_folder_of_ours_alone_and_goes() -> None:
    server = TurnServer()
    folder = Path(server.address).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    client = TurnClient(server.address, "a")
    server.wait_idle("", 0, lambda: None)
    server.close()
    assert not folder.exists()
    with pytest.raises(RunFailed, match="hands out turns is gone"):
        client.wait()
