"""Report of a rank that a signal has ended, by the process that started it.

A killed process writes no report of its own. Other ranks may fail because it is gone, so it is
reported before anybody looks at exit codes in the order of ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from gallery_lib.launcher.description import RunDescription
from gallery_lib.train.failure import ErrorReport


class Ending(NamedTuple):
    """The end of a rank's process."""

    process: int
    exit_code: int | None  # negative: the number of the signal that ended it; None: still running


def killed_rank(endings: Mapping[int, Ending]) -> int | None:
    """Return the local rank to blame among those that signals have ended at one look, or None.

    SIGKILL comes first: it is the signal of somebody else, or of the kernel when memory runs out.
    SIGTERM comes last, since a starter ends the other ranks with it.
    """
    order = {-signal.SIGKILL: 0, -signal.SIGTERM: 2}
    killed = [rank for rank, ending in endings.items() if (ending.exit_code or 0) < 0]
    return min(
        killed, key=lambda rank: (order.get(endings[rank].exit_code or 0, 1), rank), default=None
    )


def report(run: RunDescription, endings: Mapping[int, Ending]) -> bool:
    """Write a report to the run's folder if a signal has ended a rank; return whether one has.

    Args:
        run: the run.
        endings: of this host's processes, by local rank.
    """
    rank = killed_rank(endings)
    if rank is None:
        return False
    process, exit_code = endings[rank]
    ErrorReport.of_killed(run.first_rank + rank, process, -(exit_code or 0)).write(run.run_dir)
    return True
