"""Fixtures of all tests: checkout folder, folder of runs, a kernel, and shares of the machine.

The folder of runs is thrown away. pytest-xdist runs the tests in two processes (`-n 2` in
pyproject.toml; `-n 0` turns it off), those of a file one after another. Each process is pinned to a
core: two that use both at once would wait for each other's threads many times longer than one after
the other takes. A test marked `several_cores` may use all of them: it starts several processes. One
marked `whole_machine` has them for itself: it asserts a time or a ratio.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_share import Share

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts pytest in the background makes it, and all that it starts, ignore the
    # interrupts under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARE = Share.of_this_process()
SHARE.take_own_core()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the tests of a file to one process, and order them by what they need.

    Tests of a file share what its fixtures have made; but each notebook is work of its own. What
    takes long is begun first, notebooks before all else, so that no process has to wait for the
    other in the end. Tests that want the whole machine come last, in one process: each would have
    to wait for what the other process does at that moment.
    """
    items.sort(
        key=lambda item: (
            _wants_all(item),
            *(item.get_closest_marker(name) is None for name in ("slow", "xdist_group")),
        )
    )
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if _wants_all(item):
            item.add_marker(pytest.mark.xdist_group("the whole machine"), append=False)
        elif not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def _wants_all(item: pytest.Item) -> bool:
    return item.get_closest_marker("whole_machine") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Wait until the test may have its cores, before the clock of its timeout starts."""
    several = item.get_closest_marker("several_cores") is not None
    with SHARE.taken(several=several, whole=_wants_all(item)):
        return (yield)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirect runs to a temporary folder, so that no test writes into the checkout's own runs/."""
    path = tmp_path / "runs"
    monkeypatch.setenv("GALLERY_RUNS_DIR", str(path))
    return path


@pytest.fixture(autouse=True)
def nothing_of_accelerate_is_left() -> Iterator[None]:
    """Leave the process group that `accelerate()` makes, and end its watch, after each test.

    They would stay for as long as the process.
    """
    yield
    importlib.import_module("gallery_lib.system.spinning").stop()
    if "torch" in sys.modules:
        importlib.import_module("gallery_lib.comm.process_group").leave()


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """Yield the `Ranks` of two processes on one host, which the tests of a file share."""
    with importlib.import_module("ranks").Ranks(processes=2, hosts=1) as running:
        yield running


@pytest.fixture(scope="module")
def two_by_two() -> Iterator[Any]:
    """Yield the `Ranks` of two processes on each of two hosts."""
    with importlib.import_module("ranks").Ranks(processes=4, hosts=2) as running:
        yield running


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment variables that make this interpreter a Jupyter kernel, `gallery`."""
    folder = tmp_path_factory.mktemp("jupyter")
    install = [sys.executable, "-m", "ipykernel", "install"]
    install += ["--prefix", str(folder), "--name", "gallery"]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return {"JUPYTER_PATH": str(folder / "share" / "jupyter"), "HF_HUB_OFFLINE": "1"}
