"""Real processes in a gloo group on loopback, which do what a test asks for.

They are forked from the server of against_torch, and pretend to be on several hosts.

    with Ranks(processes=4, hosts=2) as ranks:
        # Answers of every rank; functions are those of on_ranks/.
        answers = ranks.call("ways.relative_error", widths, options)
        verdict = run(Case(launch="four_group_before"), ranks)  # of against_torch
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from against_torch.launches import Server

from gallery_lib.system.processes import RENDEZVOUS_VARIABLE, die_with_parent

SECONDS = 120.0


class Ranks:
    """Group of real processes. An exception in one of them is raised here."""

    def __init__(self, processes: int, hosts: int) -> None:
        self._folder = TemporaryDirectory()
        context = Server().context
        self._links, self._processes = [], []
        for rank in range(processes):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": processes,
                "GROUP_RANK": rank // (processes // hosts),
                RENDEZVOUS_VARIABLE: f"{self._folder.name}/rendezvous",
            }
            link, theirs = context.Pipe()
            strings = {name: str(value) for name, value in variables.items()}
            process = context.Process(target=_serve, args=(theirs, strings))
            process.start()
            theirs.close()
            self._links.append(link)
            self._processes.append(process)

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
        for process in self._processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


def _serve(link: Connection, variables: dict[str, str]) -> None:
    """Run the functions that are sent, named `subject.function`, and send back the results."""
    import torch

    from gallery_lib.comm import process_group

    die_with_parent()
    multiprocessing.set_start_method("fork", force=True)  # of loading processes, as in a script
    os.environ |= variables
    torch.set_num_threads(1)
    process_group.ensure_initialized(timeout_seconds=20)
    while True:
        try:
            function, values = link.recv()
        except EOFError:
            break
        try:
            subject, name = function.split(".")
            module = importlib.import_module(f"on_ranks.{subject}")
            link.send(getattr(module, name)(*values))
        except Exception as error:
            link.send(error)
    os._exit(0)
