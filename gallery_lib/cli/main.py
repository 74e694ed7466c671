"""Entry points of `gallery` and `launch_single_task.py`, and the help page.

An error is one message on standard error; only a defect of this package has a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from gallery_lib.cli.commands import COMMANDS
from gallery_lib.comm import scheduler
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.table import text_columns
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system.processes import began_at
from gallery_lib.system.version import version_text

_NOTES = """\
Exit codes: 0 done; 1 a run failed, or a regression was found; 2 bad input, and nothing was started;
130 interrupted. NO_COLOR=1 switches colours off.

`gallery COMMAND --help` has the options of each; `gallery --version` names the versions.
Training one task: python3 launch_single_task.py --help"""


LAUNCH = CommandLine(
    "launch_single_task.py", "Train one task of the gallery.", (TrainConfig, LaunchConfig)
)


def _guarded(body: Callable[[], int | None]) -> int:
    stopped = "interrupted: every process of the run has been ended."
    return exit_code_of(body, error_prefix="error", interrupted=stopped)


def launch_single_task(arguments: Sequence[str]) -> int:
    """Train one task and return the exit code.

    The options are those of TrainConfig and LaunchConfig.
    """

    def body() -> None:
        if "--version" in arguments:
            print(version_text())
            return
        config, launch_config = LAUNCH.parse(arguments)
        launch_config = scheduler.placed(launch_config)
        if launch_config.dry_run:
            from gallery_lib.launcher.commands import dry_run

            print(dry_run(config, launch_config))
            return
        from gallery_lib.console.progress import Progress

        with Progress() as progress:
            with progress.importing():
                from gallery_lib.launcher import job
                from gallery_lib.report import tables
            results = job.launch(config, launch_config, progress=progress, launched_at=began_at())
        if results is not None:
            print(tables.results_text(results))
            print(f"results: {results.config['run_dir']}/results.json")

    return _guarded(body)


def help_page() -> str:
    """Return the text that `gallery --help` prints."""
    rows = [[f"  {name}", command.line.description] for name, command in COMMANDS.items()]
    lines = ["usage: gallery COMMAND …", "", *text_columns(rows), "", _NOTES]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `gallery` command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    length = 2 if words[:1] == ["lab"] else 1
    name, rest = " ".join(words[:length]), words[length:]

    def body() -> int | None:
        if name == "--version":
            print(version_text())
            return None
        if name not in COMMANDS:
            if not words or words[-1] in ("-h", "--help", "help"):
                print(help_page())
                return None
            raise InputError(
                f"unknown command `{name}`.{did_you_mean(name, COMMANDS)} "
                f"Known: {', '.join(COMMANDS)}.",
                parameter="command",
            )
        return COMMANDS[name].run(rest, *COMMANDS[name].line.parse(rest))

    return _guarded(body)


if __name__ == "__main__":
    sys.exit(main())
