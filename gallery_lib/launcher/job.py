"""Start the processes of a training run with torchrun, show its phase, and end all of them on time.

`launch(config)` waits for the result. `start(config)` returns a Job at once (measure/ has two
alive). Both raise InputError before anything is started when the request makes no sense. Both raise
RunFailed when a process fails, with the failing rank's traceback and the last log lines. The
processes live in a session of their own under a supervisor. An interrupt, a killed kernel or a
killed worker ends every one of them within seconds.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gallery_lib import tasks
from gallery_lib.comm.rendezvous import (
    forget_meeting,
    listening_on,
    meeting_arguments,
    meeting_environment,
    on_one_host,
)
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, options
from gallery_lib.console.phases import IMPORTS, PHASES_FILE, Phase
from gallery_lib.console.progress import Progress, shown_on
from gallery_lib.errors import InputError
from gallery_lib.launcher import run_folder, stopped_ranks
from gallery_lib.launcher.forked import HELD_FILE, HELD_VARIABLE
from gallery_lib.launcher.run_view import RunView
from gallery_lib.launcher.torchrun import Torchrun, environment_of
from gallery_lib.system import hardware, paths
from gallery_lib.system.processes import (
    LAUNCHED_AT_VARIABLE,
    Relay,
    began_at,
    can_fork,
    end_supervised,
    interruptible,
    now,
    supervised,
)
from gallery_lib.tasks import memory_estimate
from gallery_lib.train import failure
from gallery_lib.train.precision import autocast_dtype
from gallery_lib.train.results import Results, read_results
from gallery_lib.train.run_log import last_step

_TORCHRUN = [sys.executable, "-m", "gallery_lib.launcher.torchrun"]
_PORT = 29400
"""Port on which host 0 of several listens, unless told otherwise."""
_LOOK_SECONDS = 0.2
_MAKES_IT_NO_LONGER = (
    "run_dir",
    "seed",
    "tensorboard",
    "log_interval",
    "lr",
    "weight_decay",
    "terminate_on_nan",
    "rank_timeout",
)


def _check(config: TrainConfig, launch: LaunchConfig) -> None:
    """Raise InputError for what can be known to fail before a process is started."""
    tasks.get(config.model)
    gpus = hardware.gpu_count()
    devices, what = (
        (gpus, f"{gpus} GPU(s)")
        if gpus
        else (hardware.cores(), f"{hardware.cores()} CPU core(s) and no GPU")
    )
    if launch.nproc_per_node > devices:
        raise InputError(
            f"nproc_per_node={launch.nproc_per_node}: this host has {what}, so at most {devices}."
        )
    if launch.node_rank >= launch.nnodes:
        raise InputError(
            f"node_rank={launch.node_rank} must be below nnodes={launch.nnodes}; "
            "hosts are counted from 0."
        )
    if launch.nnodes > 1 and launch.master_addr == LaunchConfig().master_addr:
        raise InputError(
            f"nnodes={launch.nnodes} needs master_addr: "
            "the address of host 0, as the other hosts see it."
        )
    autocast_dtype(config, "cuda" if gpus else "cpu")
    if config.run_dir is not None:
        run_folder.checked(config.run_dir, make=False)
    memory_estimate.check(config, launch.nproc_per_node)
    tasks.data_of(config)


def _check_address(host: str, port: int) -> None:
    try:
        listening_on(host, port).close()
    except OSError as error:
        what = (
            "is not an address of this host"
            if error.errno == errno.EADDRNOTAVAIL
            else f"cannot be listened on: {error.strerror}"
        )
        raise InputError(
            f"master_addr={host} with port {port} {what}. Host 0 listens there, and nowhere else: "
            "give the address by which the other hosts reach it, and a port that is free."
        ) from None


def torchrun_command(
    config: TrainConfig, launch: LaunchConfig, module: str = "gallery_lib.launcher.worker"
) -> list[str]:
    """Return the torchrun command line of a run."""
    command = [*_TORCHRUN, f"--nnodes={launch.nnodes}", f"--nproc-per-node={launch.nproc_per_node}"]
    if on_one_host(launch):
        command += meeting_arguments(config.run_dir)
    else:
        address = [
            f"--master-addr={launch.master_addr}",
            f"--master-port={launch.master_port or _PORT}",
        ]
        command += [f"--node-rank={launch.node_rank}", *address]
    if config.run_dir:
        # Without it torchrun leaves a folder in /tmp.
        command.append(f"--log-dir={Path(config.run_dir) / 'torchrun'}")
    found = importlib.util.find_spec(module) if can_fork() else None
    if found is None or found.origin is None:
        return [*command, "-m", module, *options.command_line(config)]
    # With fork torch is imported once.
    return [
        *command,
        "--start-method=fork",
        "--run-path",
        found.origin,
        *options.command_line(config),
    ]


def _direct_command(config: TrainConfig, launch: LaunchConfig, module: str) -> list[str]:
    """Return the command line of a run on this host without torchrun."""
    run = [str(launch.nproc_per_node), str(config.run_dir), module]
    return [
        sys.executable,
        "-m",
        "gallery_lib.launcher.forked",
        *run,
        *options.command_line(config),
    ]


def dry_run(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command that `launch` would run, with its environment, as a line for a shell."""
    _check(config, launch)
    variables = [
        f"{name}={shlex.quote(value)}" for name, value in environment_of(config, launch).items()
    ]
    return " ".join([*variables, shlex.join(torchrun_command(config, launch))])


class Job:
    """Processes of one run, owned by this object.

    `stop` ends them all, and so does the end of this process.
    """

    def __init__(
        self,
        config: TrainConfig,
        launch: LaunchConfig,
        command: list[str],
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None] | None,
        ahead: Torchrun | None = None,
        hold: run_folder.Hold | None = None,
    ) -> None:
        assert config.run_dir is not None
        self.config, self.launch, self.command = config, launch, command
        self.run_dir = Path(config.run_dir)
        self.began = now() if ahead is None else began_at()
        self._cache = Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or cache.folder())
        self._hold = hold
        self._torchrun_log = self.run_dir / f"torchrun-host{launch.node_rank}.txt"
        with self._torchrun_log.open("w") as errors:
            self._process = (
                supervised(
                    command, {LAUNCHED_AT_VARIABLE: repr(now()), **environment}, stderr=errors
                )
                if ahead is None
                else ahead.run(command[len(_TORCHRUN) :], environment, self._torchrun_log)
            )
        assert self._process.stdout is not None
        self._output = Relay(self._process.stdout, say)

    def running(self) -> bool:
        """Return whether the run has not ended yet."""
        return self._process.poll() is None

    def held(self) -> bool:
        """Return whether the run has done its imports and waits for `release()`."""
        return (self.run_dir / HELD_FILE).exists()

    def release(self) -> None:
        """Let a held run go on. The time since it was held does not count as start-up."""
        (self.run_dir / HELD_FILE).unlink(missing_ok=True)

    def steps_done(self) -> int:
        """Return the number of steps logged so far."""
        return last_step(self.run_dir)

    def view(
        self,
        progress: Progress,
        *,
        name: str = "",
        part: str | None = None,
        command: Mapping[str, Any] | None = None,
    ) -> RunView:
        """Return a view of the phases of this run, see RunView.

        Args:
            progress: the display.
            name: of the run, where there are several.
            part: name under which the times of all phases are added up; None: each under its own.
            command: facts that tell the run from others with the same options.
        """
        asked = {
            option: value
            for option, value in options.to_mapping(self.config).items()
            if option not in _MAKES_IT_NO_LONGER
        }
        what = {
            **asked,
            "processes": self.launch.nproc_per_node,
            "hosts": self.launch.nnodes,
            **(command or {}),
        }
        before = (
            IMPORTS
            if self.launch.node_rank == 0
            else f"running on host {self.launch.node_rank}, phases are shown on host 0"
        )
        return RunView(
            progress,
            self.run_dir,
            Phase(before, self.began),
            what,
            self._cache,
            name=name,
            part=part,
        )

    def stop(self) -> None:
        """End every process of the run; return when they are gone."""
        end_supervised(self._process)
        self._leave()

    def _leave(self) -> None:
        self._output.close()
        # Otherwise the folder may be another run's by now.
        if self._hold is None or self._hold.lasts:
            forget_meeting(self.run_dir)
        if self._hold is not None:
            self._hold.release()

    def result(self) -> Results | None:
        """Return the measurements of the ended run, None on a host other than 0.

        Raises RunFailed or InputError if the run failed.
        """
        code = self._process.wait()
        code = code if code >= 0 else 128 - code
        self._leave()
        if code == 0:
            return read_results(self.run_dir) if self.launch.node_rank == 0 else None
        torchrun_text = self._torchrun_log.read_text(errors="replace")
        compiled_first = self.config.compiler_opt and not self.steps_done()
        raise failure.of_run(
            self.run_dir, code, torchrun_text, self._output.last, compiled_first=compiled_first
        )


def start(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    module: str = "gallery_lib.launcher.worker",
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
        module: what each process runs with `python -m`; it takes the options of TrainConfig.
        environment: more variables for the processes.
        say: gets rank 0's log lines as they come.
        torchrun: False starts the processes of a run on one host directly, which saves the seconds
            of torchrun's own start.
        held: such a run waits after its imports for `Job.release()`.
        ahead: a torchrun, started for these very options, to use.
    """
    config, launch = options.checked(config), options.checked(launch or LaunchConfig())
    _check(config, launch)
    if not on_one_host(launch) and launch.node_rank == 0:
        _check_address(launch.master_addr, launch.master_port or _PORT)
    if config.run_dir is None:
        name = config.model.rsplit(":", 1)[-1] + (
            "-compiler-opt" if config.compiler_opt else "-baseline"
        )
        config = dataclasses.replace(config, run_dir=str(paths.new_run_dir(name)))
    assert config.run_dir is not None
    folder = run_folder.checked(config.run_dir)
    config = dataclasses.replace(config, run_dir=str(folder))
    hold = run_folder.Hold(folder, launch.node_rank)
    try:
        for name in (failure.ERROR_FILES, HELD_FILE, PHASES_FILE):
            for old in folder.glob(name):
                old.unlink()
        command = (
            torchrun_command(config, launch, module)
            if torchrun
            else _direct_command(config, launch, module)
        )
        variables = {
            **environment_of(config, launch),
            **(environment or {}),
            **({HELD_VARIABLE: "1"} if held else {}),
        }
        if ahead is not None and (not torchrun or ahead.environment != variables):
            raise ValueError("that torchrun was started for other options")
        if on_one_host(launch):
            forget_meeting(folder)
            variables |= meeting_environment(folder) if torchrun else {}
        variables |= stopped_ranks.environment(config, launch)
        return Job(config, launch, command, variables, say=say, ahead=ahead, hold=hold)
    except BaseException:
        hold.release()
        raise


@interruptible("the run")
def launch(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    show_log: bool = True,
    progress: bool | Progress = True,
    ahead: Torchrun | None = None,
) -> Results | None:
    """Run to the end and return what was measured; show the phase and rank 0's log on the way.

    Print the equivalent command line first.

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
    """
    with shown_on(progress) as shown:
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
            )

        return cache.without_damage(run)


def _to_its_end(job: Job, shown: Progress) -> Results | None:
    """Show a run until it ends; return its results."""
    try:
        line = shlex.join(
            ["python3", "launch_single_task.py", *options.command_line(job.launch, job.config)]
        )
        # A folder's name may be any bytes.
        shown.say("$ " + line.encode("utf-8", "backslashreplace").decode())
        view = job.view(shown)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        ended = now()
        view.look()
        results = job.result()
        view.keep(ended)
        return results
    finally:
        job.stop()
