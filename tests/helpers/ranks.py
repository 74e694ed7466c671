"""Real processes in a gloo group on loopback, which run tests, or cases of against_torch.

They are forked from the server of against_torch, and pretend to be on several hosts. Fixtures of
tests/conftest.py start them: `two`, and `two_by_two` for four processes on two hosts.

    @on_ranks("two")
    def test_a_sum(values):  # every rank runs this; what a rank raises is raised by pytest
        assert process_group.sum_over_ranks(torch.ones(1)) == 2

    def test_a_case(two):
        verdict = run(Case(launch="two_group_before"), two)  # of against_torch
"""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from against_torch.launches import Server

from gallery_lib.system.processes import RENDEZVOUS_VARIABLE, die_with_parent

SECONDS = 300.0


def on_ranks(group: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator: every rank of the group that the fixture `group` yields runs the test."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(**arguments: Any) -> None:
            ranks = arguments.pop(group)
            ranks.call(body.__module__, body.__name__, **arguments)

        fixture = inspect.Parameter(group, inspect.Parameter.KEYWORD_ONLY)
        own = inspect.signature(body).parameters.values()
        test.__signature__ = inspect.Signature([*own, fixture])  # type: ignore[attr-defined]
        return test

    return decorate


class Ranks:
    """Group of real processes. Where one of them raises, they start anew."""

    def __init__(self, processes: int, hosts: int) -> None:
        self.processes, self.hosts = processes, hosts
        self._start()

    def _start(self) -> None:
        self._folder = TemporaryDirectory()
        context = Server().context
        self._links, self._processes = [], []
        for rank in range(self.processes):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": self.processes,
                "GROUP_RANK": rank // (self.processes // self.hosts),
                RENDEZVOUS_VARIABLE: f"{self._folder.name}/rendezvous",
            }
            link, theirs = context.Pipe()
            strings = {name: str(value) for name, value in variables.items()}
            process = context.Process(target=_serve, args=(theirs, strings))
            process.start()
            theirs.close()
            self._links.append(link)
            self._processes.append(process)

    def call(self, module: str, function: str, *arguments: Any, **named: Any) -> None:
        """Run a function, or a test's body, on every rank; what one raises is a failure here."""
        deadline = time.monotonic() + SECONDS
        for link in self._links:
            link.send((module, function, arguments, named))
        answers = [_answer(link, deadline) for link in self._links]
        if any(answers):
            self._end()  # the others may wait for a rank that is not there any more
            self._start()
            lines = (f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if answer)
            pytest.fail("\n".join(lines), pytrace=False)

    def run(self, text: str, side: str, launch: str, folder: Path, seconds: float) -> str:
        """Run one side of a case of against_torch, as its Server does in new processes."""
        self.call(__name__, "_side", text, side, str(folder))
        return ""

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for link in self._links:
            link.close()
        for process in self._processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


def _answer(link: Connection, deadline: float) -> str:
    """Return '' from a rank that has done what it was sent, or what went wrong."""
    try:
        left = max(0.0, deadline - time.monotonic())
        return link.recv() if wait([link], left) else "no answer"
    except EOFError:
        return "the process has ended"


def _side(text: str, side: str, folder: str) -> None:
    """Run the side, and destroy the groups of its model's streams, which would add up."""
    import torch.distributed as dist
    from against_torch import rank

    rank.write(text, side, dist.get_rank(), folder)
    gc.collect()
    groups = [group for group in dist.distributed_c10d._world.pg_map if group != dist.group.WORLD]
    for group in groups:
        dist.destroy_process_group(group)


def _serve(link: Connection, variables: dict[str, str]) -> None:
    """Run what is sent, and send back '' or the traceback."""
    import torch

    from gallery_lib.comm import process_group

    die_with_parent()
    multiprocessing.set_start_method("fork", force=True)  # of loading processes, as in a script
    os.environ |= variables
    torch.set_num_threads(1)
    process_group.ensure_initialized(timeout_seconds=60)
    while True:
        try:
            module, function, arguments, named = link.recv()
        except EOFError:
            break
        try:
            found = getattr(importlib.import_module(module), function)
            inspect.unwrap(found)(*arguments, **named)
            link.send("")
        except (Exception, pytest.fail.Exception):
            link.send(traceback.format_exc())
    os._exit(0)
