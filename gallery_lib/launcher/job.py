"""Start the processes of a training run with torchrun, show its phase, and end all of them on time.

`launch(config)` waits for the result. `start(config)` returns a Job at once (measure/ has two
alive). Both raise InputError before anything is started when the request makes no sense. Both raise
RunFailed when a process fails, with the failing rank's traceback and the last log lines. The
processes live in a session of their own under a supervisor. An interrupt, a killed kernel or a
killed worker ends every one of them within seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gallery_lib.checkpoint import notice
from gallery_lib.comm.rendezvous import forget_meeting, meeting_environment, on_one_host
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, options
from gallery_lib.console.progress import Progress, progress_display
from gallery_lib.launcher import preflight, run_folder
from gallery_lib.launcher.commands import WORKER, direct_command, torchrun_command
from gallery_lib.launcher.description import RunDescription
from gallery_lib.launcher.running_job import Job, shown_command
from gallery_lib.launcher.torchrun import Torchrun, environment_of
from gallery_lib.system.processes import (
    interruptible,
    now,
)
from gallery_lib.train.resolved import ResolvedConfig, resolve
from gallery_lib.train.results import Results

_LOOK_SECONDS = 0.2


def start(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    module: str = WORKER,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    torchrun: bool = True,
    held: bool = False,
    ahead: Torchrun | None = None,
) -> Job:
    """Start a run and return its Job at once.

    Args:
        config: the training options.
        launch: the launch options; None: the defaults.
        module: what each process runs with `python -m`; it trains as the run's description says.
        environment: more variables for the processes.
        say: gets rank 0's log lines as they come.
        torchrun: False starts the processes of a run on one host directly, which saves the seconds
            of torchrun's own start.
        held: such a run waits after its imports for `Job.release()`.
        ahead: a torchrun, started for these very options, to use.
    """
    launch = options.checked(launch or LaunchConfig())
    resolved = resolve(config, local_processes=launch.nproc_per_node, run_dir="")
    preflight.check(resolved, launch)
    preflight.check_address(launch)
    variables = {**environment_of(resolved, launch), **(environment or {})}
    if ahead is not None and (not torchrun or ahead.environment != variables):
        raise ValueError("that torchrun was started for other options")
    goes_on = preflight.goes_on(resolved, launch)
    run_dir = str(run_folder.checked(config.run_dir or run_folder.new(resolved), resume=goes_on))
    resolved = dataclasses.replace(resolved, run_dir=run_dir)
    hold = run_folder.Hold(Path(run_dir), launch.node_rank)
    try:
        variables |= _prepare_folder(resolved, launch, torchrun=torchrun, held=held)
        return Job(
            dataclasses.replace(config, run_dir=run_dir),
            launch,
            torchrun_command(launch, run_dir, module)
            if torchrun
            else direct_command(launch.nproc_per_node, run_dir, module),
            variables,
            say=say,
            ahead=ahead,
            hold=hold,
        )
    except BaseException:
        hold.release()
        raise


def _prepare_folder(
    config: ResolvedConfig, launch: LaunchConfig, *, torchrun: bool, held: bool
) -> dict[str, str]:
    """Clear the folder of an earlier run's files and describe this one in it.

    Return the variables that lead its processes to the description and to their rendezvous.
    """
    folder = Path(config.run_dir)
    run_folder.clear(folder)
    variables = RunDescription(
        config,
        world_size=launch.hosts[1] * launch.nproc_per_node,
        local_processes=launch.nproc_per_node,
        host=launch.node_rank,
        held=held,
        restarts=launch.restarts,
    ).write()
    if on_one_host(launch):
        forget_meeting(folder)
        variables |= meeting_environment(folder) if torchrun else {}
    return variables


@interruptible("the run")
def launch(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    show_log: bool = True,
    progress: bool | Progress = True,
    ahead: Torchrun | None = None,
) -> Results | None:
    """Run to the end and return the results; show the command line, the phase and rank 0's log.

    Args:
        config: the training options.
        launch: the launch options; None: the defaults.
        show_log: whether to show rank 0's log.
        progress: whether to show progress, or an open display to use.
        ahead: a torchrun, started for these very options, to use.

    Raises:
        RunFailed: a process fails.
        InputError: bad input.
        Interrupted: the run is stopped.

    Example:
        >>> from gallery_lib import TrainConfig, launch
        >>> task = TrainConfig("tts_angular", batch_size=8, max_steps=4, evaluate=False)
        >>> launch(task, show_log=False).steps
        $ python3 launch_single_task.py ...
        4
    """
    heard = notice.Notice()
    with (
        progress_display(progress) as shown,
        heard.listening() if config.checkpoint_every else contextlib.nullcontext(),
    ):
        unused = [ahead]  # a torchrun that was started ahead can be used once

        def run() -> Results | None:
            return _to_its_end(
                start(
                    config,
                    launch,
                    say=shown.say if show_log else None,
                    ahead=unused.pop() if unused else None,
                ),
                shown,
                heard,
            )

        return cache.without_damage(run)


def _to_its_end(job: Job, shown: Progress, heard: notice.Notice) -> Results | None:
    """Show a run until it ends; return its results. A notice to end is handed on to it once."""
    try:
        line = shown_command(job.config, job.launch)
        # A folder's name may be any bytes.
        shown.say("$ " + line.encode("utf-8", "backslashreplace").decode())
        view = job.view(shown)
        handed_on = False
        while job.running():
            if heard.heard() and not handed_on:
                handed_on = True
                shown.say(f"{heard.heard()}: the run saves a checkpoint after this step, and ends")
                job.ask_to_end(heard.heard())
            view.look()
            time.sleep(_LOOK_SECONDS)
        ended = now()
        view.look()
        results = job.result()
        view.keep(ended)
        return results
    finally:
        job.stop()
