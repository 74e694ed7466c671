"""`-m gallery_lib.cluster.torchrun OPTIONS…`: torchrun, which ends with one line and the exit code of the process that failed first.

Otherwise it ends with a traceback of its own and exit code 1, whatever its processes ended with, after they have said what was wrong.
"""

from __future__ import annotations

import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from gallery_lib.comm import rendezvous

_REPORTS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.multiprocessing.api",
)
"""They say at length that a process failed, or that a signal came."""


def main(arguments: list[str]) -> int:
    """The exit code, which is 128 + its number where a signal has ended a process, or torchrun."""
    rendezvous.listen_where_told()
    for name in _REPORTS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from torch.distributed import run  # it takes its stores' class now

    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        print(f"rank {rank} ended with {how}", file=sys.stderr)
        return code if code > 0 else 128 - code
    except SignalException as error:  # its processes have been ended
        return 128 + error.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
