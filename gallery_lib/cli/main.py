"""Entry points of `gallery` and `launch_single_task.py`, and the help page.

An error is one message on standard error; only a defect of this package has a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from gallery_lib.cli.commands import COMMANDS
from gallery_lib.comm import scheduler
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.command_line import parse_command_line
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.table import text_columns
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system.processes import began_at
from gallery_lib.system.version import version_text

EXAMPLES = {
    "gallery run --profile quick": "the whole gallery, at small sizes",
    "gallery run resnet50 -p batch_size 32 --deadline 600": (
        "one notebook, with a parameter and a time limit"
    ),
    "gallery run --out runs/night --resume": "go on where a batch was interrupted",
    "gallery show runs/night": "its table again",
    "gallery compare runs/night runs/day": "what changed; exit code 1 for a regression",
    "gallery compare --model hf_Bert --sequence-length 128": "a task without its notebook",
    "gallery bench --waterfall resnet50": "what each technique adds",
    "gallery doctor --roofline resnet50 --compiler-opt": "how near the machine's limits a step is",
    "gallery lab up --hosts 2 --rate 1gbit": "two hosts on this machine, with a link of that rate",
    "gallery lab run --nproc-per-node 4 -- train.py": "train.py over torchrun, on each of them",
    "gallery pack resnet50 --out resnet50.tar.gz": "to take along",
}

_NOTES = """\
Colours and progress
  A terminal gets a line or a table that is kept up to date; a file, a pipe \
and a terminal that calls itself dumb get a
  plain line when a phase begins and now and then. NO_COLOR=1 switches colours off.

Exit codes
  0 done; 1 a run failed, or a regression was found; 2 bad input, and nothing was started; \
130 interrupted

`gallery COMMAND --help` has the options of each. Training one task: \
python3 launch_single_task.py --help
`gallery --version` names the versions. In a shell where no environment is active, \
`gallery` is .venv/bin/gallery"""


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
        config, launch_config = parse_command_line(
            arguments,
            TrainConfig,
            LaunchConfig,
            prog="launch_single_task.py",
            description="Train one task of the gallery, in one process or several.",
        )
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
    intro = (
        "usage: gallery COMMAND …\n\nHow much faster does a model train with the accelerated "
        "backend, and is it the same training?"
    )
    groups: dict[str, list[list[str]]] = {}
    for name, command in COMMANDS.items():
        groups.setdefault(command.group, []).append([f"  {name}", command.does])
    groups["Examples"] = [[f"  {words}", meaning] for words, meaning in EXAMPLES.items()]
    parts = ["\n".join([group, *text_columns(rows)]) for group, rows in groups.items()]
    return "\n\n".join([intro, *parts, _NOTES])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `gallery` command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def body() -> int | None:
        if not words or words[0] in ("-h", "--help", "help"):
            print(help_page())
            return None
        if words[0] == "--version":
            print(version_text())
            return None
        name, *rest = words
        if name not in COMMANDS:
            raise InputError(
                f"unknown command `{name}`.{did_you_mean(name, COMMANDS)} "
                f"Known: {', '.join(COMMANDS)}.",
                parameter="command",
            )
        return COMMANDS[name].run(rest, *COMMANDS[name].line.parse(rest))

    return _guarded(body)


if __name__ == "__main__":
    sys.exit(main())
