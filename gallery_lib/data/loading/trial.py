"""Try something in a forked process, whose side effects end with it.

So a stream's first items, or a sampler's order, can be looked at without taking anything away from
the training: files are read, generators drawn from and iterators used up in the other process.
"""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from gallery_lib.system.processes import die_with_parent

LONGEST_SECONDS = 60.0


def in_child(work: Callable[[], Any]) -> tuple[Any, str]:
    """Return (result, "") of `work()`, run in a forked process, or (None, why there is none)."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the child runs nothing that they may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = multiprocessing.get_context("fork").Process(
                target=_answer, args=(work, sender)
            )
            process.start()
        sender.close()
        if not receiver.poll(LONGEST_SECONDS):
            return None, f"nothing came in {LONGEST_SECONDS:.0f} s"
        return receiver.recv()
    except EOFError:
        return None, "the process that looked at it ended early"
    except AssertionError as error:  # of a daemonic process, which may have no children
        return None, str(error)
    finally:
        receiver.close()
        if "process" in locals() and process.pid is not None:
            process.kill()
            process.join()


def _answer(work: Callable[[], Any], sender: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(1)  # OpenMP's other threads do not exist here
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    try:
        answer = (work(), "")
    except BaseException as error:
        message = " ".join(str(error).split())[:200]
        answer = (None, f"{type(error).__name__}: {message}")
    sender.send(answer)
