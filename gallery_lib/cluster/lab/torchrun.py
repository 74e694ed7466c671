"""`-m gallery_lib.cluster.lab.torchrun OPTIONS…`: torchrun, which ends with one line and the exit code of the process that failed first.

Otherwise it ends with a traceback of its own and exit code 1, whatever its processes ended with, after they have said what was wrong.
"""

from __future__ import annotations

import logging
import signal
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_REPORTS_FAILURES = "torch.distributed.elastic.multiprocessing.api"


def main(arguments: list[str]) -> int:
    """The exit code, which is 128 + its number for a process that a signal has ended."""
    logging.getLogger(_REPORTS_FAILURES).setLevel(logging.CRITICAL)  # what is said here, with exit code, path and process id
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        print(f"rank {rank} ended with {how}", file=sys.stderr)
        return code if code > 0 else 128 - code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
