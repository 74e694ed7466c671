"""torchrun with a one-line error and a useful exit code: `-m gallery_lib.cluster.torchrun OPTION…`.

The exit code is that of the process that failed first. Plain torchrun ends with a traceback of its
own and exit code 1, whatever its processes ended with, after they have said what was wrong.
"""

from __future__ import annotations

import logging
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from gallery_lib.comm import rendezvous
from gallery_lib.system.processes import exit_code_of_signal, shell_exit_code


def main(arguments: list[str]) -> int:
    """Run torchrun; return the exit code, 128 + the signal's number where one has ended it."""
    rendezvous.listen_where_told()
    # torch.distributed.run picks up the stores' class, and sets its loggers' levels, at import.
    from torch.distributed import run

    for name in ("agent.server", "multiprocessing"):  # which report failures and signals at length
        logging.getLogger(f"torch.distributed.elastic.{name}.api").setLevel(logging.CRITICAL)
    try:
        run.main(arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
        print(f"rank {rank} ended with {how}", file=sys.stderr)
        return shell_exit_code(code)
    except SignalException as error:  # its processes have been ended
        return exit_code_of_signal(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
