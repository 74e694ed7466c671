"""Checkpoints of a run: saved at the end of steps, the last before an end that was asked for."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.notice import ENDED_FILE, Notice
from gallery_lib.checkpoint.training_state import Parts
from gallery_lib.config import TrainConfig, command_line
from gallery_lib.config.intervals import interval_of
from gallery_lib.errors import GoOnLater, RunFailed
from gallery_lib.system.files import written_if_possible
from gallery_lib.system.json_files import write_json
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE
from gallery_lib.train.compiled_graphs import STATE, CompiledGraphs
from gallery_lib.train.interruptions import facts, state_of_run
from gallery_lib.train.measurements import Trained
from gallery_lib.train.resolved import ResolvedConfig
from gallery_lib.train.run_log import STEPS_FILE
from gallery_lib.train.session import Session

if TYPE_CHECKING:
    from gallery_lib.checkpoint.saver import Saver


def parts_of(session: Session) -> Parts:
    """Return the objects of a run whose state its checkpoints hold."""
    updates = session.updates
    return Parts(session.model, session.optimizer, updates.schedule, session.scaler, session.loader)


class RunCheckpoints:
    """Checkpoints of one run. Without `checkpoint_every` it does nothing."""

    def __init__(self, session: Session, parts: Parts, notice: Notice) -> None:
        config = session.config
        self._session, self._parts, self._notice = session, parts, notice
        self.graphs = CompiledGraphs(session)
        self.saver: Saver | None = None
        if config.checkpoint_every is not None:
            # Here, since the import takes most of a second.
            from gallery_lib.checkpoint.saver import Saver

            self.saver = Saver(
                Path(config.run_dir) / folders.CHECKPOINTS,
                interval_of(config.checkpoint_every),
                config.keep,
                session.log.say,
                notice,
            )

    def due(self, steps: int) -> tuple[bool, bool]:
        """Return whether to save after so many steps, and whether to end then."""
        self.graphs.step_done()
        return (False, False) if self.saver is None else self.saver.due(steps)

    def save(self, trained: Trained, steps: int) -> None:
        """Save a checkpoint after `steps`, all of which are logged."""
        assert self.saver is not None
        session = self._session
        state = self._parts.state(run=state_of_run(session, trained))
        state.facts = facts(session.config)
        state.of_rank[STATE] = self.graphs.positions
        log = Path(session.config.run_dir) / STEPS_FILE
        if log.exists():
            state.copies = {STEPS_FILE: (log, log.stat().st_size)}
        self.saver.save(steps, state)

    def finish(self) -> None:
        """Wait until the last checkpoint is whole."""
        if self.saver is not None:
            self.saver.finish()

    def end_early(self, steps: int) -> GoOnLater | RunFailed:
        """Return the error with which a run ends that was told to, and note it in its folder."""
        assert self.saver is not None
        config = self._session.config
        self.finish()
        name = self._notice.heard() or "another process's notice"
        start = f"{name}: the run has ended after step {steps}"
        last = next(iter(folders.newest_first(Path(config.run_dir) / folders.CHECKPOINTS)), None)
        if last is None:
            return RunFailed(f"{start}, and its checkpoint could not be saved: {self._failure()}")
        saved = (
            f"{start} with a checkpoint"
            if not self.saver.failure
            else f"{start}, whose checkpoint could not be saved ({self._failure()}); the last "
            f"whole one is {last.name}"
        )
        if int(os.environ.get("LOCAL_RANK", "0")) == 0:
            with written_if_possible(Path(config.run_dir)):
                write_json(Path(config.run_dir) / ENDED_FILE, {"step": steps, "reason": saved})
        return GoOnLater(f"{saved}. Go on with: {resume_command(config)}")

    def _failure(self) -> str:
        return "" if self.saver is None else self.saver.failure


def resume_command(config: ResolvedConfig) -> str:
    """Return the command line with which a run goes on, without its launcher's options."""
    names = TrainConfig.__dataclass_fields__
    given = TrainConfig(**{name: getattr(config, name) for name in names} | {"resume": "auto"})
    words = [word for word in command_line.words_of(given) if not word.startswith("--model=")]
    return shlex.join(["python3", "launch_single_task.py", f"--model={config.model}", *words])


@contextlib.contextmanager
def notice_of_run(config: ResolvedConfig) -> Iterator[Notice]:
    """Context: signals ask a run that saves checkpoints to end; others end as ever."""
    if config.checkpoint_every is None:
        yield Notice()
        return
    notice = Notice(Path(config.run_dir), int(os.environ.get(HEARS_NOTICE_VARIABLE, "0")))
    with notice.listening():
        yield notice
