"""Starts of a run's processes again: what torchrun is to do, and what the processes then do.

A process that ends because it was told to go on later is not started again, and its exit code is
torchrun's. After any other failure the ranks that are left are killed at once. They would take
SIGTERM for a notice to save a checkpoint, which they could not without those that are gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gallery_lib.checkpoint.folders import AUTO, CHECKPOINTS, newest_first
from gallery_lib.launcher import description
from gallery_lib.system.exit_codes import GO_ON_LATER
from gallery_lib.train.resolved import ResolvedConfig


def go_on_later_is_final() -> None:
    """Make torchrun's agent end a run whose processes have said to go on later."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    monitor, stop = LocalElasticAgent._monitor_workers, LocalElasticAgent._stop_workers

    def monitored(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        if any(one.exitcode == GO_ON_LATER for one in (result.failures or {}).values()):
            agent._remaining_restarts = 0
        return result

    def stopped(agent: Any, group: Any) -> None:
        run = description.of_this_run()
        if run is None or run.config.checkpoint_every is None:
            stop(agent, group)
        else:
            agent._shutdown(signal.SIGKILL)

    LocalElasticAgent._monitor_workers = monitored  # type: ignore[method-assign]
    LocalElasticAgent._stop_workers = stopped  # type: ignore[method-assign]


@contextlib.contextmanager
def exit_code_told() -> Iterator[None]:
    """Context: end with the code of processes that have said to go on later, not with 1."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        yield
    except ChildFailedError as error:
        if any(one.exitcode == GO_ON_LATER for one in error.failures.values()):
            sys.exit(GO_ON_LATER)
        raise


def resumed(config: ResolvedConfig) -> ResolvedConfig:
    """Return the options with which a process that may be a second one goes on.

    A run that may be started again goes on from its own checkpoints as soon as it has any.
    """
    own = newest_first(Path(config.run_dir) / CHECKPOINTS)
    return dataclasses.replace(config, resume=AUTO) if own else config
