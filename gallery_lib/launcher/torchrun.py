"""torchrun that listens only where it is told to (`rendezvous.py`), and names the rank to blame.

-m gallery_lib.launcher.torchrun ARGUMENTS…
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from gallery_lib.comm import rendezvous
from gallery_lib.launcher.forked import Ending, report_killed, watch_stopped
from gallery_lib.system.processes import GO_ON_LATER, HEARS_NOTICE_VARIABLE
from gallery_lib.train.resolved import Run, this_run


class _Finished:
    """An event across forked processes that no killed process can block.

    `multiprocessing.Event.set` waits until every process that sleeps in `wait` has woken up, so it
    waits for ever for one that was killed meanwhile.
    """

    def __init__(self) -> None:
        self._flag = mmap.mmap(-1, 1)  # shared with processes that are forked later

    def set(self) -> None:
        """Let all processes go on that wait."""
        self._flag[0] = 1

    def wait(self) -> None:
        """Wait until another process has called `set`."""
        while not self._flag[0]:
            time.sleep(0.005)


def _watch_ranks(run: Run | None) -> None:
    """Have torchrun report killed ranks, end stopped ones, and tell forked ranks by `_Finished`.

    A killed process is reported before torchrun looks at exit codes in the order of ranks.
    """
    from torch.distributed.elastic.multiprocessing import api

    def endings(context: Any) -> dict[int, Ending]:
        if isinstance(context, api.SubprocessContext):
            commands = {rank: one.proc for rank, one in context.subprocess_handlers.items()}
            return {rank: Ending(one.pid, one.poll()) for rank, one in commands.items()}
        processes = context._pc.processes if context._pc else []
        return {rank: Ending(one.pid, one.exitcode) for rank, one in enumerate(processes)}

    def patch(kind: Any) -> None:
        start, poll = kind._start, kind._poll

        def started(context: Any) -> None:
            if kind is api.MultiprocessContext and context.start_method == "fork":
                context._worker_finished_event = _Finished()
            start(context)
            if run is not None:
                processes = {rank: ending.process for rank, ending in endings(context).items()}
                watch_stopped(run, processes)

        def polled(context: Any) -> Any:
            if run is None:
                return poll(context)
            reported = report_killed(run, endings(context))
            result = poll(context)
            if result is not None and result.failures and not reported:  # it failed in between
                first = min(result.failures.values(), key=lambda failure: failure.timestamp)
                report_killed(run, {first.local_rank: Ending(first.pid, first.exitcode)})
            return result

        kind._start, kind._poll = started, polled

    patch(api.MultiprocessContext)
    patch(api.SubprocessContext)


def _restart_after_failures_alone(run: Run | None) -> None:
    """Have torchrun not start a process again that ended because it was told to go on later.

    After any other failure of a run with checkpoints the ranks that are left are killed at once.
    They would take SIGTERM for a notice to save a checkpoint, which they could not without those
    that are gone.
    """
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor = LocalElasticAgent._monitor_workers

    def monitored(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if any(one.exitcode == GO_ON_LATER for one in (result.failures or {}).values()):
            agent._remaining_restarts = 0
        return result

    LocalElasticAgent._monitor_workers = monitored  # type: ignore[method-assign]
    if run is not None and run.config.checkpoint_every is not None:

        def stopped(agent: Any, group: Any) -> None:
            agent._shutdown(signal.SIGKILL)

        LocalElasticAgent._stop_workers = stopped  # type: ignore[method-assign]


def main(arguments: Sequence[str]) -> None:
    """Run torchrun."""
    rendezvous.listen_where_told()
    from torch.distributed import run

    if HEARS_NOTICE_VARIABLE in os.environ:
        # SIGTERM would end torchrun's ranks before they have saved anything.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGINT,SIGHUP,SIGQUIT"  # --signals-to-handle
    # To print an exception, torch's own handler imports the compiler, which takes seconds.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.addHandler(logging.StreamHandler())
    logger.propagate = False
    described = this_run()
    _watch_ranks(described)
    _restart_after_failures_alone(described)
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(list(arguments))
    except ChildFailedError as error:
        if any(one.exitcode == GO_ON_LATER for one in error.failures.values()):
            sys.exit(GO_ON_LATER)
        raise


if __name__ == "__main__":
    exit_code = 1
    try:
        main(sys.argv[1:])
        exit_code = 0
    except SystemExit as end:
        exit_code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # the launcher would wait for an ordinary end, which frees all imports
