"""Turns are handed out only to those who know the secret; strangers keep nobody waiting."""

from __future__ import annotations

import socket
import stat
import threading
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from gallery_lib.errors import RunFailed
from gallery_lib.measure.comparison import turns
from gallery_lib.measure.comparison.turns import TurnClient, TurnServer


def take_turn(server: TurnServer, name: str) -> None:
    client = TurnClient(server.address, name, 0)
    done = threading.Thread(target=client.wait)
    done.start()
    server.wait_idle(name, 1, lambda: None)
    server.go(name)
    done.join(5)
    assert not done.is_alive()


def test_strangers_who_are_silent_send_garbage_or_a_wrong_secret_keep_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_GREETING_SECONDS", 60.0)
    server = TurnServer()
    path, _ = server.address
    silent, garbage = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    silent.connect(path)
    garbage.connect(path)
    garbage.sendall(b"\xff" * 32)
    garbage.close()
    wrong = Client(path, family="AF_UNIX")
    wrong.send_bytes(b'{"key": "0", "run": "a", "rank": 0}')
    for content in (b"[]", b"no json", b'{"key": 1}'):
        Client(path, family="AF_UNIX").send_bytes(content)
    take_turn(server, "a")
    with pytest.raises(EOFError):
        wrong.recv_bytes()
    server.close()
    silent.close()


def test_the_socket_lies_in_a_folder_of_ours_alone_and_goes(tmp_path: Path) -> None:
    server = TurnServer()
    folder = Path(server.address[0]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    client = TurnClient(server.address, "a", 0)
    server.wait_idle("", 0, lambda: None)
    server.close()
    assert not folder.exists()
    with pytest.raises(RunFailed, match="hands out turns is gone"):
        client.wait()
