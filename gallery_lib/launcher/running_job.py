"""A run whose processes are alive: watch it, tell it to end, stop it, read its results."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gallery_lib.checkpoint import notice
from gallery_lib.comm.rendezvous import forget_meeting
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, command_line
from gallery_lib.console.phases import Phase
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GoOnLater, InputError
from gallery_lib.launcher import run_folder
from gallery_lib.launcher.commands import TORCHRUN
from gallery_lib.launcher.forked import HELD_FILE
from gallery_lib.launcher.run_view import RunView, first_phase, identity
from gallery_lib.launcher.torchrun import Torchrun
from gallery_lib.system.exit_codes import shell_exit_code
from gallery_lib.system.json_files import read_json
from gallery_lib.system.processes import (
    LAUNCHED_AT_VARIABLE,
    Relay,
    began_at,
    end_supervised,
    now,
    supervised,
)
from gallery_lib.train import failure
from gallery_lib.train.results import Results, read_results
from gallery_lib.train.run_log import last_step


class Job:
    """Processes of one run, owned by this object.

    `stop` ends them all, and so does the end of this process. `config` has the options that were
    given, with the run's folder; the run's description has what became of them.
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
                else ahead.run(command[len(TORCHRUN) :], environment, self._torchrun_log)
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
        return RunView(
            progress,
            self.run_dir,
            Phase(first_phase(self.launch), self.began),
            identity(self.config, self.launch, command),
            self._cache,
            name=name,
            part=part,
        )

    def ask_to_end(self, name: str) -> None:
        """Have the run save a checkpoint after its present step, and end; `name`: of a signal."""
        notice.request(self.run_dir, name)

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

        Raises:
            RunFailed: if the run failed.
            InputError: if the run failed.
            GoOnLater: if the run was told to end and has saved a checkpoint.
        """
        code = shell_exit_code(self._process.wait())
        self._leave()
        if code == 0:
            # Where hosts come and go, rank 0 may have been on any of them.
            first = self.launch.node_rank == 0 or self.launch.elastic
            return read_results(self.run_dir) if first else None
        if code == GoOnLater.exit_code:
            raise GoOnLater(self._ended_early())
        raise failure.of_run(
            self.run_dir,
            code,
            self._torchrun_log.read_text(errors="replace"),
            self._output.last,
            compiled_first=self.config.compiler_opt and not self.steps_done(),
        )

    def _ended_early(self) -> str:
        """Return why the run has ended early, with the command that goes on with it."""
        reason = f"the run in {self.run_dir} has ended with a checkpoint"
        with contextlib.suppress(FileNotFoundError, InputError):
            file = self.run_dir / notice.ENDED_FILE
            reason = str(read_json(file, dict[str, Any], again="")["reason"])
        config = dataclasses.replace(self.config, resume="auto")
        return f"{reason}. Go on with: {shown_command(config, self.launch)}"


def shown_command(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command line of a run, as a person would type it."""
    model = f"--model={config.model}"  # named even where it is the default
    words = [word for word in command_line.words_of(launch, config) if word != model]
    return shlex.join(["python3", "launch_single_task.py", model, *words])
