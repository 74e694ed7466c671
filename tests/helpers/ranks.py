"""Real processes in a gloo group on loopback, which do what a test asks for.

They pretend to be on several hosts.

    with Ranks(processes=4, hosts=2) as ranks:
        # Answers of every rank; functions are those of on_ranks/.
        answers = ranks.call("averages.gradients", widths, options)
        verdict = run(Case(launch="four_group_before"), ranks)  # of against_torch
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.system.processes import search_path

SECONDS = 120.0


class Ranks:
    """Group of real processes. An exception in one of them is raised here."""

    def __init__(self, processes: int, hosts: int) -> None:
        self._folder = TemporaryDirectory()
        self._key = secrets.token_bytes(16)
        listener = Listener(str(Path(self._folder.name) / "socket"), authkey=self._key)
        paths = [search_path(), *map(str, Path(__file__).parents[:2])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        arguments = [str(listener.address), self._key.hex(), str(processes // hosts)]
        command = [
            sys.executable,
            "-m",
            "gallery_lib.launcher.forked",
            str(processes),
            self._folder.name,
            "on_ranks.process",
            *arguments,
        ]
        self._process = subprocess.Popen(command, env=environment)
        self._links = [listener.accept() for _ in range(processes)]
        self._links.sort(key=lambda link: link.recv())
        listener.close()

    def call(self, function: str, *arguments: Any) -> list[Any]:
        """Run a function on every rank, and return the results by rank."""
        for link in self._links:
            link.send((function, arguments))
        results = []
        for rank, link in enumerate(self._links):
            assert wait([link], SECONDS), f"rank {rank} did not answer"
            results.append(link.recv())
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def run(self, text: str, side: str, launch: str, folder: Path, seconds: float) -> str:
        """Run one side of a case of against_torch, as its Server does in new processes."""
        self.call("case.side", text, side, str(folder))
        return ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(timeout=10)
        self._folder.cleanup()


def connect(address: str, key: str, rank: int) -> Any:
    """Connect a rank to the test's process, and return the link."""
    link = Client(address, authkey=bytes.fromhex(key))
    link.send(rank)
    return link
