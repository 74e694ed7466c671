"""torchrun that listens only where it is told to, and ends as its first failed process did.

-m gallery_lib.launcher.torchrun ARGUMENTS…

Plain torchrun listens on every interface, and ends with a traceback of its own and exit code 1,
whatever its processes ended with. On one host its ranks meet in a file. Where there is no GPU they
are forked from it, which has imported torch; CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gallery_lib.comm import rendezvous
from gallery_lib.errors import InputError
from gallery_lib.launcher.forked import Ending, report_killed
from gallery_lib.system.processes import (
    GO_ON_LATER,
    HEARS_NOTICE_VARIABLE,
    SOCKETS_VARIABLE,
    shell_exit_code,
)
from gallery_lib.train.failure import ERROR_FILES
from gallery_lib.train.resolved import this_run


def _leave_sigterm_to_the_ranks() -> None:
    """Have SIGTERM stay ignored, and ranks killed where one fails: to them SIGTERM is a notice."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    def stopped(agent: Any, group: Any) -> None:
        agent._shutdown(signal.SIGKILL)

    LocalElasticAgent._stop_workers = stopped  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGINT,SIGHUP,SIGQUIT"  # --signals-to-handle


class _Finished:
    """An event across forked processes that no killed process can block.

    `multiprocessing.Event.set` waits until every process that sleeps in `wait` has woken up, so it
    waits for ever for one that was killed meanwhile.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)  # shared with processes that are forked later

    def set(self) -> None:
        self._flag[0] = 1

    def wait(self) -> None:
        while not self._flag[0]:
            time.sleep(0.005)


def _prepare_forks() -> None:
    """Import what ranks need, and have forked ones wait for each other by `_Finished`."""
    from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

    from gallery_lib.launcher import worker

    worker.preload()
    start = MultiprocessContext._start

    def started(context: Any) -> None:
        context._worker_finished_event = _Finished()
        start(context)

    MultiprocessContext._start = started  # type: ignore[method-assign]


def _report_the_killed(run_dir: Path | None, first_rank: int) -> None:
    """Report a killed rank before torch ends the others, whose ends look the same."""
    from torch.distributed.elastic.multiprocessing import api

    def patch(kind: Any, ranks: Callable[[Any], dict[int, Ending]]) -> None:
        poll = kind._poll

        def polled(context: Any) -> Any:
            ends = ranks(context)
            reported = report_killed(ends, run_dir, first_rank)
            if any(one.exit_code for one in ends.values()):
                for one in ends.values():  # a stopped rank does not hear torch's SIGTERM
                    if one.exit_code is None:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(one.process, signal.SIGCONT)
            result = poll(context)
            if result is not None and result.failures and reported is None:
                first = min(result.failures.values(), key=lambda one: one.timestamp)
                ending = Ending(first.pid, first.exitcode)
                report_killed({first.local_rank: ending}, run_dir, first_rank)
            return result

        kind._poll = polled

    def forked(context: Any) -> dict[int, Ending]:
        processes = context._pc.processes if context._pc else []
        return {rank: Ending(one.pid, one.exitcode) for rank, one in enumerate(processes)}

    def started(context: Any) -> dict[int, Ending]:
        handlers = context.subprocess_handlers.items()
        return {rank: Ending(one.proc.pid, one.proc.poll()) for rank, one in handlers}

    patch(api.MultiprocessContext, forked)
    patch(api.SubprocessContext, started)


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; return the exit code of the rank to blame, or 0.

    A run with restarts begins again where a process has failed. A signal ends this process with
    128 + its number.
    """
    rendezvous.listen_where_told()
    if HEARS_NOTICE_VARIABLE in os.environ:
        _leave_sigterm_to_the_ranks()
    if "--start-method=fork" in arguments:
        _prepare_forks()
    for name in ("agent.server", "multiprocessing"):  # which report failures and signals at length
        logging.getLogger(f"torch.distributed.elastic.{name}.api").setLevel(logging.CRITICAL)
    run, code = this_run(), 0
    run_dir, first_rank = (run.run_dir, run.first_rank) if run is not None else (None, 0)
    _report_the_killed(run_dir, first_rank)
    for _ in range(1 + (run.restarts if run is not None else 0)):
        if folder := os.environ.get(SOCKETS_VARIABLE):  # of a run on one host
            for name in (rendezvous.MEETING_FILE, rendezvous.RENDEZVOUS_FILE):
                Path(folder, name).unlink(missing_ok=True)
            for left in Path(folder).glob(ERROR_FILES):  # of a full disk
                left.unlink()
        for left in run_dir.glob(ERROR_FILES) if run_dir is not None else ():
            left.unlink()
        code = _run(arguments)
        if code in (0, InputError.exit_code, GO_ON_LATER):
            break
    return code


def _run(arguments: Sequence[str]) -> int:
    # torch.distributed.run picks up the stores' class, and sets its loggers' levels, at import.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(list(arguments))
    except ChildFailedError as error:
        if any(one.exitcode == GO_ON_LATER for one in error.failures.values()):
            return GO_ON_LATER
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        print(f"rank {rank} ended with {how}", file=sys.stderr)
        return shell_exit_code(code)
    except SignalException as error:  # its processes have been ended
        sys.exit(128 + int(error.sigval))
    return 0


if __name__ == "__main__":
    exit_code = 1
    try:
        exit_code = main(sys.argv[1:])
    except SystemExit as end:
        exit_code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # the launcher would wait for an ordinary end, which frees all imports
