"""Training processes are forked only where no CUDA can be used after the fork."""

from __future__ import annotations

import ctypes

import pytest

from gallery_lib.system import processes


def test_processes_are_not_forked_where_cudas_driver_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = []

    def missing(name: str) -> None:
        loaded.append(name)
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert processes.can_fork()
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    assert not processes.can_fork()
    assert loaded == ["libcuda.so.1"] * 2
