"""Entry points of `gallery` and `launch_single_task.py`: the commands and the help page.

Each command is a file of commands/, which declares what the command takes. An error is one message
on standard error; only a defect of this package has a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gallery_lib.cli.commands import (
    bench,
    compare,
    doctor,
    lab,
    list_tasks,
    pack,
    plot,
    run,
    show,
)
from gallery_lib.comm import scheduler
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.config.command_line import CommandLine, parse_command_line
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.table import text_columns
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.system import paths
from gallery_lib.system.processes import began_at
from gallery_lib.system.version import version_text


def _guarded(body: Callable[[], int | None]) -> int:
    return exit_code_of(
        body,
        error_prefix="error",
        interrupted="interrupted: every process of the run has been ended.",
    )


def _say_where_things_are_kept() -> None:
    if notice := paths.notice():
        print(notice, file=sys.stderr)


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
            description="Train one task of the gallery, over torchrun.",
        )
        config, launch_config = scheduler.placed(config, launch_config)
        if launch_config.dry_run:
            from gallery_lib.launcher.commands import dry_run

            print(dry_run(config, launch_config))
            return
        _say_where_things_are_kept()
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


class Command(NamedTuple):
    """Word after `gallery`: its file in commands/, its place in the help, and what it does."""

    module: Any
    group: str
    does: str

    @property
    def line(self) -> CommandLine:
        """Return the command's line."""
        return self.module.LINE


_MEASURE, _READ, _TAKE = "Run and measure", "Read what came out", "Look around and take away"

_COMMANDS = {
    "run": Command(run, _MEASURE, "notebooks, headless, and which of them really ran"),
    "compare": Command(
        compare, _MEASURE, "baseline against accelerated backend, in turns; or two batches"
    ),
    "bench": Command(
        bench, _MEASURE, "tasks × variants, with other libraries, or one technique after another"
    ),
    "lab": Command(
        lab, _MEASURE, "several hosts on this machine, with emulated links, to train on"
    ),
    "show": Command(show, _READ, "the tables of a run, a comparison, a batch or a bench"),
    "plot": Command(plot, _READ, "a comparison's throughput since launch, as a picture"),
    "doctor": Command(
        doctor, _READ, "what this machine offers; where a step went, and how near its limits it is"
    ),
    "list": Command(list_tasks, _TAKE, "the tasks of the gallery"),
    "pack": Command(pack, _TAKE, "one task as an archive that runs by itself on another machine"),
}

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


def help_page() -> str:
    """Return the text that `gallery --help` prints."""
    parts = [
        "usage: gallery COMMAND …\n\nHow much faster does a model train with the accelerated "
        "backend, and is it the same training?"
    ]
    for group in dict.fromkeys(command.group for command in _COMMANDS.values()):
        rows = [
            ["  " + name, command.does]
            for name, command in _COMMANDS.items()
            if command.group == group
        ]
        parts.append("\n".join([group, *text_columns(rows)]))
    parts.append(
        "\n".join(
            [
                "Examples",
                *text_columns([["  " + words, meaning] for words, meaning in EXAMPLES.items()]),
            ]
        )
    )
    return "\n\n".join([*parts, _NOTES])


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
        if words[0] not in _COMMANDS:
            raise InputError(
                f"unknown command `{words[0]}`.{did_you_mean(words[0], _COMMANDS)} Known: "
                f"{', '.join(_COMMANDS)}.",
                parameter="command",
            )
        _say_where_things_are_kept()
        return _COMMANDS[words[0]].module.main(words[1:])

    return _guarded(body)


if __name__ == "__main__":
    sys.exit(main())
