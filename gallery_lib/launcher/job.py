"""Start the processes of a training run, show its phase, and end all of them on time.

`launch(config)` waits for the result. `start(config)` returns a Job at once (measure/ has two
alive). Both raise InputError before anything is started when the request makes no sense. Both raise
RunFailed when a process fails, with the failing rank's traceback and the last log lines. The
processes live in a session of their own under a supervisor. An interrupt, a killed kernel or a
killed worker ends every one of them within seconds. The same holds for `run_script`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gallery_lib import memory
from gallery_lib.checkpoint.folders import AUTO
from gallery_lib.checkpoint.training import Notice, request_end
from gallery_lib.comm.rendezvous import RENDEZVOUS_FILE, loopback_interface, meeting_arguments
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, options, switches
from gallery_lib.console.progress import IMPORTS, Phase, Progress, progress_display, read_phases
from gallery_lib.console.text import visible
from gallery_lib.errors import GoOnLater, RunFailed
from gallery_lib.launcher import preflight
from gallery_lib.launcher.forked import HELD_FILE
from gallery_lib.system import hardware, paths
from gallery_lib.system.files import PrivateFolder
from gallery_lib.system.processes import (
    HEARS_NOTICE_VARIABLE,
    LAUNCHED_AT_VARIABLE,
    OUTPUT,
    PYTHON,
    RENDEZVOUS_VARIABLE,
    SOCKETS_VARIABLE,
    Relay,
    can_fork,
    end_supervised,
    interruptible,
    now,
    run_supervised,
    shell_exit_code,
    start_supervised,
)
from gallery_lib.train import failure, precision
from gallery_lib.train.resolved import Run, resolve, threads_of
from gallery_lib.train.results import Results, last_step, read_results

WORKER = "gallery_lib.launcher.worker"
"""Module that each process of a training run executes."""
TORCHRUN = ("-m", "gallery_lib.launcher.torchrun")
_LOOK_SECONDS = 0.2
_SHORTEST_PHASE_SECONDS = 0.05
_LAST_LINES = 20


def command_of(
    launch: LaunchConfig, folder: str, words: Sequence[str] = (), *, meeting: str | Path = ""
) -> list[str]:
    """Return the torchrun command of a run whose processes get `words`.

    On one host torchrun meets in a file of the folder `meeting`. It writes its logs to `folder`.
    Restarts are those of `launcher.torchrun`.
    """
    command = [*PYTHON, *TORCHRUN, f"--nnodes={launch.nnodes}"]
    command += [f"--nproc-per-node={launch.nproc_per_node}", "--max-restarts=0"]
    if folder:
        command.append(f"--log-dir={folder}/torchrun")
    if launch.nnodes == 1:
        command += meeting_arguments(meeting or folder or None)
    else:
        command += [f"--node-rank={launch.node_rank}", f"--master-addr={launch.master_addr}"]
        command += [f"--master-port={launch.master_port or preflight.PORT}"]
    if can_fork() and launch.nnodes == 1:
        worker = str(Path(__file__).with_name("worker.py"))
        return [*command, "--start-method=fork", "--run-path", worker, *words]
    return [*command, "--no-python", *PYTHON, "-u", "-m", WORKER, *words]


def environment_of(config: TrainConfig, launch: LaunchConfig) -> dict[str, str]:
    """Return the variables that a run's processes get on top of this process's environment."""
    variables = {
        "OMP_NUM_THREADS": str(threads_of(config, launch.nproc_per_node)),
        **switches.variables_of(config.compiler_opt, config.kernels),
        # Every rank imports torch's compiler, which would make a folder of its own.
        **cache.cache_variables(),
    }
    if launch.nnodes == 1:
        variables |= loopback_interface()
    if config.checkpoint_every is not None:
        variables[HEARS_NOTICE_VARIABLE] = str(launch.node_rank)
    if config.compiler_opt:
        variables |= memory.allocator_variables()
    return variables


def dry_run(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command that `launch` would run, with its environment, as a line for a shell.

    The options stand in the line itself: nothing is written.
    """
    run_dir = config.run_dir or ""
    preflight.check(resolve(config, local_processes=launch.nproc_per_node, run_dir=run_dir), launch)
    environment = environment_of(config, launch)
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    command = command_of(launch, run_dir, options.words_of(config))
    return " ".join([*variables, shlex.join(command)])


def shown_command(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command line of a run, as a person would type it."""
    model = f"--model={config.model}"  # named even where it is the default
    words = [word for word in options.words_of(launch, config) if word != model]
    return shlex.join(["python3", "launch_single_task.py", model, *words])


class RunView:
    """View of the phases of one run, which reads only the run's directory.

    `before` is the phase until the run notes one.
    """

    def __init__(self, progress: Progress, run_dir: Path, before: Phase, name: str = "") -> None:
        self._progress, self._run_dir = progress, run_dir
        self._prefix = f"{name}: " if name else ""
        self._last = before

    def go_on(self, before: Phase) -> None:
        """Show `before` until the run notes a later phase."""
        self._last = before

    def look(self) -> None:
        """Show the phases that have begun since the last look; without a new one, the last again.

        Phases that were over at once are left out.
        """
        later = [one for one in read_phases(self._run_dir) if one.began > self._last.began]
        new = later or [self._last]
        ends = [*(phase.began for phase in new[1:]), math.inf]
        for phase, end in zip(new, ends, strict=True):
            if end - phase.began >= _SHORTEST_PHASE_SECONDS:
                logged = last_step(self._run_dir) if phase.total is not None else 0
                self._progress.show(
                    self._prefix + phase.name,
                    count=max(phase.count, logged),
                    total=phase.total,
                    began=phase.began,
                )
        self._last = new[-1]


class Job:
    """Processes of one run, owned by this object.

    `stop` ends them all, and so does the end of this process. `config` has the options that were
    given, with the run's folder; the run's file has what became of them.
    """

    def __init__(
        self,
        config: TrainConfig,
        launch: LaunchConfig,
        command: list[str],
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None] | None,
        folders: contextlib.ExitStack,
    ) -> None:
        assert config.run_dir is not None
        self.config, self.launch = config, launch
        self.run_dir = Path(config.run_dir)
        self.began = float(environment[LAUNCHED_AT_VARIABLE])
        self._folders, self._there = folders, self.run_dir.stat()
        self._in_memory = Path(environment[SOCKETS_VARIABLE])
        self._starter_log = self.run_dir / f"launcher-host{launch.node_rank}.txt"
        with self._starter_log.open("w") as errors:
            self._process = start_supervised(command, environment, stderr=errors, **OUTPUT)
        assert self._process.stdout is not None
        self._output = Relay(self._process.stdout, say)

    def running(self) -> bool:
        """Return whether the run has not ended yet.

        Raises:
            RunFailed: if its folder is gone.
        """
        if self._process.poll() is not None:
            return False
        self._check_folder()
        return True

    def _check_folder(self) -> None:
        try:
            gone = not os.path.samestat(self._there, self.run_dir.stat())
        except OSError as error:  # a network disk may only not answer
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        if gone:
            raise RunFailed(
                f"the folder {self.run_dir} was removed or renamed while a run was at work in it. "
                "The run has been ended; a renamed folder holds what was written before."
            )

    def held(self) -> bool:
        """Return whether the run has done its imports and waits for `release()`."""
        return (self.run_dir / HELD_FILE).exists()

    def release(self) -> None:
        """Let a held run go on. The time since it was held does not count as start-up."""
        (self.run_dir / HELD_FILE).unlink(missing_ok=True)

    def steps_done(self) -> int:
        """Return the number of steps logged so far."""
        return last_step(self.run_dir)

    def view(self, progress: Progress, name: str = "") -> RunView:
        """Return a view of this run's phases on a display, see RunView."""
        host = self.launch.node_rank
        first = f"running on host {host}, phases are shown on host 0" if host else IMPORTS
        return RunView(progress, self.run_dir, Phase(first, self.began), name)

    def stop(self) -> None:
        """End every process of the run; return when they are gone."""
        end_supervised(self._process)
        self._output.close()
        self._folders.close()

    def result(self) -> Results | None:
        """Return the measurements of the ended run, None on a host other than 0.

        Raises:
            RunFailed: if the run failed; InputError, if its input was wrong.
            GoOnLater: if the run was told to end and has saved a checkpoint.
        """
        code = shell_exit_code(self._process.wait())
        self._output.close()
        try:
            self._check_folder()
            if code == 0:
                return read_results(self.run_dir) if self.launch.node_rank == 0 else None
            if code == GoOnLater.exit_code:
                go_on = dataclasses.replace(self.config, resume=AUTO)
                raise GoOnLater(
                    f"the run in {self.run_dir} has ended with a checkpoint. "
                    f"Go on with: {shown_command(go_on, self.launch)}"
                )
            raise failure.of_run(
                self.run_dir,
                code,
                self._starter_log.read_text(errors="replace"),
                self._output.last,
                compiled_first=self.config.compiler_opt and not self.steps_done(),
                in_memory=self._in_memory,
            )
        finally:
            self._folders.close()


def start(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    module: str = WORKER,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    held: bool = False,
    launched_at: float | None = None,
) -> Job:
    """Start a run and return its Job at once.

    Args:
        config: the training options.
        launch: the launch options; None: the defaults.
        module: what each process runs with `python -m`; it trains as the run's file says.
        environment: more variables for the processes.
        say: gets rank 0's log lines as they come.
        held: such a run waits after its imports for `Job.release()`.
        launched_at: when its start-up began, as `processes.now()` says it; None: now.
    """
    launch = options.checked(launch or LaunchConfig())
    resolved = resolve(config, local_processes=launch.nproc_per_node, run_dir="")
    preflight.check(resolved, launch)
    preflight.check_address(launch)
    variables = {**environment_of(resolved, launch), **(environment or {})}
    variant = "compiler-opt" if config.compiler_opt else "baseline"
    new_run = f"{config.model.rsplit(':', 1)[-1]}-{variant}"
    run_dir = config.run_dir or str(paths.new_run_dir(new_run))
    run_dir = str(preflight.checked_folder(run_dir, resume=resolved.resume is not None))
    resolved = dataclasses.replace(resolved, run_dir=run_dir)
    folders = contextlib.ExitStack()
    try:
        folders.enter_context(preflight.locked_for_host(Path(run_dir), launch.node_rank))
        meeting = folders.enter_context(contextlib.closing(PrivateFolder())).path
        preflight.clear_folder(Path(run_dir), launch.node_rank)
        variables[SOCKETS_VARIABLE] = str(meeting)
        variables |= Run(
            resolved,
            world_size=launch.nnodes * launch.nproc_per_node,
            local_processes=launch.nproc_per_node,
            host=launch.node_rank,
            held=held,
            restarts=launch.max_restarts,
        ).write()
        variables[LAUNCHED_AT_VARIABLE] = repr(now() if launched_at is None else launched_at)
        if launch.nnodes == 1:
            variables[RENDEZVOUS_VARIABLE] = str(meeting / RENDEZVOUS_FILE)
            # torchrun has no TCP store to share with the ranks.
            variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if held or module != WORKER:  # part of a comparison, whose start-up is measured
            count = str(launch.nproc_per_node)
            command = [*PYTHON, "-m", "gallery_lib.launcher.forked", count, run_dir, module]
        else:
            command = command_of(launch, run_dir, meeting=meeting)
        own = dataclasses.replace(config, run_dir=run_dir)
        return Job(own, launch, command, variables, say=say, folders=folders)
    except BaseException:
        folders.close()
        raise


@interruptible("the run")
def launch(
    config: TrainConfig,
    launch: LaunchConfig | None = None,
    *,
    show_log: bool = True,
    progress: bool | Progress = True,
    launched_at: float | None = None,
) -> Results | None:
    """Run to the end and return the results; show the command line, the phase and rank 0's log.

    Args:
        config: the training options.
        launch: the launch options; None: the defaults.
        show_log: whether to show rank 0's log.
        progress: whether to show progress, or an open display to use.
        launched_at: when its start-up began, as `processes.now()` says it; None: now.

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
    end_notice = Notice()
    with contextlib.ExitStack() as stack:
        shown = stack.enter_context(progress_display(progress))
        if config.checkpoint_every:
            stack.enter_context(end_notice.listening())
        say = shown.say if show_log else None

        def run() -> Results | None:
            job = start(config, launch, say=say, launched_at=launched_at)
            return _wait_for_results(job, shown, end_notice)

        return cache.without_damage(run)


def _wait_for_results(job: Job, shown: Progress, end_notice: Notice) -> Results | None:
    """Show a run until it ends; return its results. Forward one notice to end to it."""
    try:
        # A folder's name may be any bytes.
        shown.say(visible(f"$ {shown_command(job.config, job.launch)}"))
        level, dtype = job.config.amp_level, job.config.amp_dtype
        shown.say(f"precision: {precision.described(level, dtype, hardware.device_type())}")
        view = job.view(shown)
        forwarded = ""
        while job.running():
            if (name := end_notice.heard()) and not forwarded:
                forwarded = name
                shown.say(f"{name}: the run saves a checkpoint after this step, and ends")
                request_end(job.run_dir, job.launch.node_rank, name)
            view.look()
            time.sleep(_LOOK_SECONDS)
        view.look()
        return job.result()
    finally:
        job.stop()


# --------------------------------------------------------------------------------------------------
# A script of the reader's own, alone or with torchrun; its output is shown as it comes


def script_command(
    path: Path, arguments: Sequence[str], *, processes: int | None, logs: Path | str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a script, and the variables that it needs.

    `processes` of torchrun, None for plain python, share the cores. `logs` is an empty folder for
    torchrun's files, which has to stay until the script ends.
    """
    start = [sys.executable]
    if processes is not None:
        # PYTHON's -P is for torchrun alone: the script finds modules beside it.
        start = [*PYTHON, *TORCHRUN, f"--log-dir={logs}", f"--nproc-per-node={processes}"]
        start += meeting_arguments(logs)
    environment = {
        **cache.cache_variables(),
        **loopback_interface(),
        "OMP_NUM_THREADS": str(max(1, hardware.cores() // (processes or 1))),
    }
    return [*start, str(path), *arguments], environment


def shown_script_command(path: Path, arguments: Sequence[str], *, processes: int | None) -> str:
    """Return the command line that a reader would type for the script, in the checkout."""
    root = paths.checkout()
    file = str(path.relative_to(root)) if root and path.is_relative_to(root) else path.name
    start = ["python3"] if processes is None else ["torchrun", f"--nproc_per_node={processes}"]
    return shlex.join([*start, file, *arguments])


@interruptible("the script")
def run_script(
    path: Path | str, arguments: Sequence[str] = (), *, processes: int | None = None
) -> list[str]:
    """Run a script with plain python, or with so many torchrun processes; return what it printed.

    Raises:
        RunFailed: the script fails; the message has the last lines.
        Interrupted: the script is stopped.
    """
    path = Path(path).resolve()
    with TemporaryDirectory() as logs:
        command, environment = script_command(path, arguments, processes=processes, logs=logs)
        print("$ " + shown_script_command(path, arguments, processes=processes), flush=True)
        code, lines = run_supervised(command, environment)
    if code:
        raise RunFailed(
            f"{path.name} ended with exit code {code}. Its last lines:\n"
            + "\n".join(lines[-_LAST_LINES:])
        )
    return lines
