"""torchrun that listens only where it is told to, and ends as its first failed process did.

-m gallery_lib.launcher.torchrun ARGUMENTS…

Plain torchrun listens on every interface, and ends with a traceback of its own and exit code 1,
whatever its processes ended with.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from gallery_lib.comm import rendezvous
from gallery_lib.launcher.forked import Ending, report_killed
from gallery_lib.system.processes import (
    GO_ON_LATER,
    HEARS_NOTICE_VARIABLE,
    shell_exit_code,
)
from gallery_lib.train.resolved import this_run


def _leave_sigterm_to_the_ranks() -> None:
    """Have SIGTERM stay ignored, and ranks killed where one fails: to them SIGTERM is a notice."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    def stopped(agent: Any, group: Any) -> None:
        agent._shutdown(signal.SIGKILL)

    LocalElasticAgent._stop_workers = stopped  # type: ignore[method-assign]
    os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGINT,SIGHUP,SIGQUIT"  # --signals-to-handle


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; return the exit code, 128 + the signal's number where one has ended it."""
    rendezvous.listen_where_told()
    # torch.distributed.run picks up the stores' class, and sets its loggers' levels, at import.
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if HEARS_NOTICE_VARIABLE in os.environ:
        _leave_sigterm_to_the_ranks()
    for name in ("agent.server", "multiprocessing"):  # which report failures and signals at length
        logging.getLogger(f"torch.distributed.elastic.{name}.api").setLevel(logging.CRITICAL)
    try:
        run.main(list(arguments))
    except ChildFailedError as error:
        failures = error.failures.values()
        if any(one.exitcode == GO_ON_LATER for one in failures):
            return GO_ON_LATER
        report_killed(
            this_run(), {one.local_rank: Ending(one.pid, one.exitcode) for one in failures}
        )
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        print(f"rank {rank} ended with {how}", file=sys.stderr)
        return shell_exit_code(code)
    except SignalException as error:  # its processes have been ended
        return 128 + int(error.sigval)
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
