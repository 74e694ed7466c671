"""Commands behind `gallery`, a function each: what it takes, its place in the help, and its work.

A function gets the words behind the command, then what its line makes of them. It imports what it
needs when it runs, so help stays quick.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gallery_lib.config import (
    BatchConfig,
    BenchConfig,
    CompareConfig,
    LabConfig,
    LabNameConfig,
    LabRunConfig,
    LaunchConfig,
    RooflineConfig,
    TrainConfig,
)
from gallery_lib.config.command_line import CommandLine
from gallery_lib.console.exit_code import INTERRUPTED, importing
from gallery_lib.errors import GalleryError, InputError, did_you_mean
from gallery_lib.system import hardware, paths

if TYPE_CHECKING:
    from gallery_lib.measure.bench.result import Bench

Words = Sequence[str]
Operands = argparse.Namespace


class Command(NamedTuple):
    """Word after `gallery`: its line, its group in the help, what it does, and its function."""

    line: CommandLine
    group: str
    does: str
    run: Callable[..., int | None]


COMMANDS: dict[str, Command] = {}
_MEASURE, _READ, _TAKE = "Run and measure", "Read what came out", "Look around and take away"


def _command(
    group: str,
    does: str,
    description: str,
    *classes: type,
    operands: Mapping[str, Mapping[str, Any]] = {},
    fixed: Mapping[str, str] = {},
    actions: Mapping[str, CommandLine] = {},
) -> Callable[[Callable[..., int | None]], Callable[..., int | None]]:
    """Return a decorator that adds a function to COMMANDS, under its name without a final `_`."""

    def add(function: Callable[..., int | None]) -> Callable[..., int | None]:
        name = function.__name__.rstrip("_")
        line = CommandLine(
            f"gallery {name}", description, classes, operands, fixed, actions=actions
        )
        COMMANDS[name] = Command(line, group, does, function)
        return function

    return add


def _operand(metavar: Any, text: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "help": text, **more}


@contextlib.contextmanager
def _reading(place: str) -> Iterator[None]:
    """Context: what code finds amiss in a damaged file, or a foreign one, is an InputError."""
    try:
        yield
    except GalleryError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{place} holds a file that is damaged, or of another version ({what}).",
            parameter="folder",
        ) from error


_NAMES = "notebooks of the gallery, or paths of others (default: all)"
_GIVEN = "a parameter, for the notebooks that have it; may be repeated"


@_command(
    _MEASURE,
    "notebooks, headless, and which of them really ran",
    "Run notebooks headless and say which of them really ran. Exit code 0: all passed; "
    "1: not all; 130: interrupted.",
    BatchConfig,
    operands={
        "names": _operand("NAME", _NAMES, nargs="*"),
        "-p": _operand(
            ("PARAMETER", "VALUE"), _GIVEN, nargs=2, action="append", default=[], dest="given"
        ),
    },
)
def run(words: Words, config: BatchConfig, operands: Operands) -> int:
    """Run notebooks, and print which of them passed."""
    paths.check_resume(config.out, resume=config.resume, work="batch")
    from gallery_lib.notebooks.batch import plan

    planned = plan.plan(operands.names, config.profile, dict(operands.given))
    from gallery_lib.notebooks.batch import reports, schedule

    folder, report = schedule.run(planned, config, command=["gallery", "run", *words])
    print(reports.text(report, folder))
    if len(planned) > 1:
        print(reports.named(folder))
    if report.interrupted_by:
        return INTERRUPTED
    return 0 if report.passed else 1


_LENGTH = "it trains for warmup_steps + rounds × block_steps steps"
_ONE_HOST = "the variants take turns on one host; launch_single_task.py trains on several"
_UNDISTURBED = "it compares undisturbed steps; launch_single_task.py has it"
_HOSTS = ("nnodes", "node_rank", "master_addr", "master_port")


@_command(
    _MEASURE,
    "baseline against accelerated backend, in turns; or two batches",
    "Train a task as baseline and with the accelerated backend, in turns, and say what the "
    "difference is.\n"
    "`gallery compare BEFORE AFTER` compares two folders of `gallery run` or `prepare.sh --run`.",
    *(TrainConfig, LaunchConfig, CompareConfig),
    operands={
        "batches": _operand(
            "BATCH", "none, or two: before and after, instead of any option", nargs="*"
        )
    },
    fixed={
        "compiler_opt": "it trains with and without",
        "dry_run": "launch_single_task.py has it",
        "run_dir": "it makes a new folder below runs/; GALLERY_RUNS_DIR chooses another place",
        "log_interval": "it logs every step",
        **dict.fromkeys(("max_steps", "epochs"), _LENGTH),
        **dict.fromkeys(("checkpoint_every", "keep", "resume", "max_restarts"), _UNDISTURBED),
        **dict.fromkeys(_HOSTS, _ONE_HOST),
    },
)
def compare(
    words: Words,
    config: TrainConfig,
    launch_config: LaunchConfig,
    compare_config: CompareConfig,
    operands: Operands,
) -> int | None:
    """Compare baseline and accelerated backend, or two batches; return 1 for a regression."""
    if operands.batches:
        if len(words) != 2 or len(operands.batches) != 2:
            raise InputError(
                "gallery compare takes two batches and no option, or options alone; "
                f"got {' '.join(words)}.",
                parameter="batches",
            )
        from gallery_lib.notebooks.batch import changes, record

        with _reading(" or ".join(operands.batches)):
            before, after = (record.read_report(Path(folder)) for folder in operands.batches)
            print(changes.text(before, after))
            return 1 if changes.regressions(changes.changes(before, after)) else 0
    from gallery_lib.console.progress import Progress

    with Progress() as progress:
        with progress.importing():
            from gallery_lib.launcher.commands import shown_command
            from gallery_lib.measure.comparison.compare import compare_backend
            from gallery_lib.report import tables
            from gallery_lib.train import precision
        progress.say(f"precision of both: {precision.described(config, hardware.device_type())}")
        comparison = compare_backend(config, launch_config, compare_config, progress=progress)
    print(tables.comparison_text(comparison, details=False))
    same = dataclasses.replace(
        config, compiler_opt=True, amp_level=comparison.candidate.config["amp_level"]
    )
    print("Next: all tables of this comparison; a training with the accelerated backend:")
    print(f"  {shlex.join([sys.argv[0], 'show', comparison.folder])}")
    print(f"  {shown_command(same, launch_config)}")
    return None


@_command(
    _MEASURE,
    "tasks × variants, with other libraries, or one technique after another",
    "Train tasks eagerly, with torch.compile, with other libraries and with this backend, in "
    "turns.\n"
    "Exit code 0: ours (of a waterfall, every technique) ran with parity in every task; "
    "1: not in all.",
    BenchConfig,
    operands={
        "tasks": _operand("TASK", "tasks of the gallery, or FILE.py:NAME (default: all)", nargs="*")
    },
)
def bench(words: Words, config: BenchConfig, operands: Operands) -> int:
    """Measure tasks × variants; return 1 where ours did not run with parity everywhere."""
    from gallery_lib.console.progress import Progress, busy

    progress = Progress()
    with progress.importing():
        from gallery_lib.measure.bench import bench as measure
        from gallery_lib.report import style
        from gallery_lib.report.bench import chart, complete, markdown, text
    progress.clear()

    def write(folder: Path, bench: Bench) -> None:
        picture = f"{bench.kind}.png"
        with busy("tables and picture"):
            style.save(chart(bench).draw(), folder / picture)
            (folder / f"{bench.kind}.md").write_text(markdown(bench, picture), encoding="utf-8")

    folder, result = measure.run(
        operands.tasks, config, command=["gallery", "bench", *words], done=write
    )
    kind = result.kind
    print(text(result))
    print(f"results: {folder}/{kind}.json, tables: {kind}.md, picture: {kind}.png")
    return 0 if complete(result) else 1


_LAB = {
    "up": CommandLine(
        "gallery lab up",
        "Make hosts on this machine: network namespaces joined by a bridge, with shaped links and "
        "CPU shares of their own.\n"
        "They stay until `gallery lab down`. Needs root or user namespaces; exit code 2, with what "
        "is needed, where it has neither.",
        (LabConfig,),
    ),
    "run": CommandLine(
        "gallery lab run",
        "Run a Python script over torchrun, or any command, on every host of a lab.\n"
        "Each gets NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME. Exit code "
        "0: it ended with 0 on all;\n"
        "1: it failed on one, and the others were ended.",
        (LabRunConfig,),
        behind_dashes="SCRIPT.py or COMMAND …",
    ),
    "status": CommandLine(
        "gallery lab status",
        "Show the labs that are up: hosts, addresses, rates, CPU shares, processes.",
    ),
    "down": CommandLine(
        "gallery lab down",
        "End a lab and all its processes, and clear what killed commands have left of others.",
        (LabNameConfig,),
    ),
}


@_command(
    _MEASURE,
    "several hosts on this machine, with emulated links, to train on",
    "Several hosts on one machine, with emulated links: gallery lab up, run, status, down.",
    actions=_LAB,
)
def lab(words: Words, config: Any = None, command: Words = ()) -> None:
    """Make, use, show or take down a lab; `config` is that of the action."""
    from gallery_lib.cluster import Lab, keeper
    from gallery_lib.cluster import run as on_hosts

    action = words[0]
    if action == "up":
        made = Lab(config.hosts, config.rate, config.cpus, config.name).up()
        made.detach()
        print(made.described())
    elif action == "run":
        on_hosts.run(Lab.named(config.name), command, config)
    elif action == "status":
        texts = [Lab.named(name).described() for name in keeper.names_up()]
        print("\n\n".join(texts) or "no lab is up.")
    else:
        gone, name = keeper.take_down(config.name), config.name
        for one in gone:
            print(f"the lab `{one}` is gone.")
        if name not in gone:
            print(f"there is no lab `{name}`.{did_you_mean(name, keeper.names_up())}")


@_command(
    _READ,
    "the tables of a run, a comparison, a batch or a bench",
    "Print the tables of what a folder holds.",
    operands={
        "folder": _operand(
            "FOLDER",
            "a run, a comparison, a batch, a bench, a roofline, or a folder that holds runs and "
            "comparisons",
        )
    },
)
def show(words: Words, operands: Operands) -> None:
    """Print the tables of the run, comparison, batch, bench or roofline in a folder."""
    with _reading(operands.folder):
        print(_text_of(Path(operands.folder)))


def _text_of(folder: Path) -> str:
    """Return the tables of what a folder holds."""
    from gallery_lib.measure.profile.roofline.result import FILE as ROOFLINE_FILE
    from gallery_lib.measure.profile.roofline.result import read_roofline
    from gallery_lib.notebooks.batch import record, reports
    from gallery_lib.report import tables

    benches = [folder / f"{kind}.json" for kind in ("bench", "waterfall")]
    if benches := [file for file in benches if file.exists()]:
        from gallery_lib.measure.bench.result import read_bench
        from gallery_lib.report import bench

        return "\n\n".join(bench.text(read_bench(file)) for file in benches)
    if (folder / ROOFLINE_FILE).exists():
        from gallery_lib.report import roofline

        return roofline.text(read_roofline(folder / ROOFLINE_FILE))
    if (folder / record.REPORT_FILE).exists():
        return reports.text(record.read_report(folder), folder)
    return tables.folder_text(folder)


@_command(
    _READ,
    "a comparison's throughput since launch, as a picture",
    "Draw a comparison's throughput since launch.",
    operands={
        "folder": _operand("COMPARISON", "the folder of a comparison"),
        "picture": _operand("PICTURE.png", "the file to write"),
    },
)
def plot(words: Words, operands: Operands) -> None:
    """Draw a comparison's throughput as a picture."""
    if not operands.picture.endswith(".png"):
        raise InputError(f"{operands.picture} must end with .png.", parameter="picture")
    from gallery_lib.measure.comparison.result import read_comparison
    from gallery_lib.report import plots, style

    with _reading(operands.folder):
        chart = plots.throughput(read_comparison(operands.folder))
        style.save(chart.draw(), operands.picture)
    print(chart.alternative_text)


_NOT_OF_A_FEW_STEPS = (
    *("max_steps", "epochs", "evaluate", "save_weights", "log_interval"),
    *("checkpoint_every", "keep", "resume", "terminate_on_nan", "rank_timeout"),
    *("lr_schedule", "lr_warmup_steps", "lr_schedule_steps", "pretrained"),
)


@_command(
    _READ,
    "what this machine offers; where a step went, and how near its limits it is",
    "What this machine offers; where a run's step went, and what to change.\n"
    "With --roofline TASK: how near a training step is to this machine's limits, group by group of "
    "operators.",
    *(RooflineConfig, TrainConfig),
    operands={"folder": _operand("RUN", "a run, a comparison or a notebook's folder", nargs="?")},
    fixed={
        "model": "--roofline names the task",
        "run_dir": "--out names the folder",
        **dict.fromkeys(_NOT_OF_A_FEW_STEPS, "it trains a few steps on one batch"),
    },
)
def doctor(words: Words, asked: RooflineConfig, config: TrainConfig, operands: Operands) -> None:
    """Say what a machine offers or where a step went, or measure a roofline."""
    if asked.roofline is None:
        if option := next((word for word in words if word.startswith("-")), None):
            option = option.split("=")[0]
            raise InputError(
                f"gallery doctor takes {option} only with --roofline TASK.",
                parameter=option.lstrip("-").replace("-", "_"),
            )
        with importing():
            from gallery_lib.report.doctor import text as text_of

        with _reading(operands.folder or ""):
            print(text_of(operands.folder))
        return
    if operands.folder:
        raise InputError(
            f"--roofline {asked.roofline} measures a task, and takes no folder: leave out "
            f"{operands.folder}.",
            parameter="folder",
        )
    from gallery_lib.console.progress import Progress

    with Progress() as progress:
        with progress.importing():
            from gallery_lib.measure.profile.roofline.measure import measure
            from gallery_lib.report.roofline import text
        config = dataclasses.replace(config, model=asked.roofline)
        folder, roofline = measure(config, asked, progress=progress)
    print(text(roofline))
    print(f"results: {folder}/roofline.json")


@_command(_TAKE, "the tasks of the gallery", "Name the tasks of the gallery.")
def list_(words: Words) -> None:
    """Print a line for each task: name, title and domain."""
    with importing():
        from gallery_lib import tasks

    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:28} {task.title:28} {task.domain}")


@_command(
    _TAKE,
    "one task as an archive that runs by itself on another machine",
    "Write one task as an archive that runs by itself on another machine.",
    operands={
        "task": _operand("TASK", "a name from `gallery list`"),
        "--out": _operand(
            "FILE.tar.gz", "the archive (default: gallery-TASK.tar.gz in this folder)"
        ),
    },
)
def pack(words: Words, operands: Operands) -> None:
    """Write one task as a .tar.gz archive, and print the archive's path."""
    with importing():
        from gallery_lib.notebooks.pack import pack as write

    print(write(operands.task, Path(operands.out or f"gallery-{operands.task}.tar.gz")))
