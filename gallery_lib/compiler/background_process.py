"""Process in the background that fills the compiler's cache: `CompilerProcess(work, 10)`, a fork.

The fork has the model, its inputs and the user's code as they are, so nothing is sent to it. It
shares memory with the training until either writes to it. It has a low priority, and ends with the
process that it comes from.

A fork does not have the threads of its parent, so all work is done by one thread here. What the
fork has of the parent's sockets and pipes is put out of use, so that nobody is kept waiting for it,
and no collective call can be made.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import re
import signal
import stat
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil
import torch
import torch.distributed as dist

from gallery_lib.system.exit_codes import (
    exit_code_of_signal,
    shell_exit_code,
    signal_of_exit_code,
)
from gallery_lib.system.processes import adopt_orphans, end_descendants

_LOOK_SECONDS = 0.2
_OPENMP = re.compile(r"/lib[gi]?omp[^/]*\.so")
_kept_alive: list[Any] = []
"""Objects of the parent that would wait for the parent's threads if they were deleted."""


class CompilerProcess:
    """Fork of this process that runs `work` at low priority, and ends with this process.

    Raises:
        OSError: the system has no room for a process.
    """

    def __init__(self, work: Callable[[], None], niceness: int) -> None:
        """Fork now; the fork has that niceness on top of this process's."""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._owner = os.getpid()
        self._status: int | None = None
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a notebook's, or closed
                stream.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which this file sees to.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            _run(work, niceness, self._owner, self._log.fileno())

    def exit_code(self) -> int | None:
        """Return the exit code, negative for the number of a signal; None while it runs."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it, or nobody may
                self._status = 1
            else:
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def fault(self) -> str:
        """Return why the process has failed, in a line."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        number = signal_of_exit_code(shell_exit_code(self._status or 0))
        if number is None:
            return lines[-1] if lines else "it said nothing"
        # Python tells the frames of every thread for a signal, the innermost first.
        frames = text.partition("Current thread ")[2].split("\n")[1:]
        where = f" in {frame[5:]}" if frames and (frame := frames[0].strip()) else ""
        return f"it was ended by {number.name}{where}"

    def end(self) -> None:
        """Kill the process and what it has started.

        It is stopped first, so that it starts nothing meanwhile. Its own priority may be too low
        for it to hear a request soon.
        """
        if os.getpid() != self._owner or self.exit_code() is not None:
            return
        process = psutil.Process(self._pid)
        process.suspend()
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._status = -signal.SIGKILL
        os.waitpid(self._pid, 0)


def _run(work: Callable[[], None], niceness: int, parent: int, log: int) -> NoReturn:
    """Run `work` and end this process."""
    code = 1
    try:
        # What the parent has made is never deleted here: an iterator would end its processes.
        gc.freeze()
        adopt_orphans()
        os.nice(niceness)
        for number in (1, 2):
            os.dup2(log, number)
        sys.stdout = sys.stderr = open(log, "w", closefd=False)  # noqa: SIM115
        faulthandler.enable()
        _put_connections_out_of_use()
        for interrupt in (signal.SIGINT, signal.SIGUSR1):  # those are for the parent
            signal.signal(interrupt, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
        _use_one_thread()
        work()
        code = 0
    except BaseException as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).split("\n") if line.strip()]
        # "backend='inductor' raised:" is followed by what was raised.
        reason = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
        print(f"{type(error).__name__}: {reason}")  # `fault` says this line
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _watch(parent: int) -> None:
    """End this process and what it has started on SIGTERM, or when its parent has gone."""
    while signal.sigtimedwait({signal.SIGTERM}, _LOOK_SECONDS) is None and os.getppid() == parent:
        pass
    end_descendants(0.0)
    os._exit(exit_code_of_signal(signal.SIGTERM))


def _use_one_thread() -> None:
    """Let every OpenMP region run on the thread that comes to it.

    The parent's threads are not there, and a region would wait for them. oneDNN shares out its work
    by the number of threads before a region begins, and its threads wait for each other; so that
    number has to be one. The number that compiled code is written for stays.
    """
    written_for = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.get_num_threads = lambda: written_for
    for library in {
        line.split(maxsplit=5)[5].strip()
        for line in Path("/proc/self/maps").read_text().splitlines()
        if _OPENMP.search(line)
    }:
        ctypes.CDLL(library).omp_set_max_active_levels(0)


def _put_connections_out_of_use() -> None:
    """Replace sockets and pipes of the parent by the null device, and leave its process group."""
    null = os.open(os.devnull, os.O_RDWR)
    for link in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # the folder's own
            kind = os.fstat(int(link.name)).st_mode
            if stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
                os.dup2(null, int(link.name))
    if dist.is_available() and dist.is_initialized():
        _kept_alive.append(dist.GroupMember.WORLD)
        dist.GroupMember.WORLD = None
