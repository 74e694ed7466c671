"""The `gallery` command and `launch_single_task.py`.

A command is a function. It gets the words behind the command, then what its line makes of them, and
imports what it needs when it runs, so help stays quick. An error is one message on standard error;
only a defect of this package has a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gallery_lib.comm import rendezvous
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
    TryConfig,
)
from gallery_lib.config.options import CommandLine
from gallery_lib.console.exit_code import INTERRUPTED, exit_code_of, importing
from gallery_lib.console.progress import Progress
from gallery_lib.console.text import text_columns
from gallery_lib.errors import GalleryError, InputError, did_you_mean
from gallery_lib.system import hardware
from gallery_lib.system.hardware import version_text
from gallery_lib.system.processes import began_at

if TYPE_CHECKING:
    from gallery_lib.measure.bench_result import Bench

Function = Callable[..., int | None]
Words = Sequence[str]
Operands = argparse.Namespace


class Command(NamedTuple):
    """What stands behind `gallery`: a line of options and operands, and a function."""

    line: CommandLine
    run: Function


COMMANDS: dict[str, Command] = {}  # by their words, in the order of the help


def _command(name: str, *classes: type, **line: Any) -> Callable[[Function], Function]:
    """Return a decorator that adds a function to COMMANDS; its docstring stands in the help."""

    def add(function: Function) -> Function:
        does = " ".join((function.__doc__ or "").split())
        COMMANDS[name] = Command(CommandLine(f"gallery {name}", does, classes, **line), function)
        return function

    return add


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


_NAMES = {"nargs": "*", "metavar": "NAME", "help": "notebooks, or their paths (default: all)"}
_GIVEN = {
    **{"nargs": 2, "action": "append", "default": [], "dest": "given"},
    **{"metavar": ("PARAMETER", "VALUE"), "help": "a parameter of the notebooks; may be repeated"},
}


@_command("run", BatchConfig, operands={"names": _NAMES, "-p": _GIVEN})
def run(words: Words, config: BatchConfig, operands: Operands) -> int:
    """Run notebooks headless; exit code 1: not all passed."""
    from gallery_lib.notebooks import plan, reports, schedule  # names a package that is missing

    planned = plan.plan(operands.names, config.profile, dict(operands.given))
    folder, report = schedule.run(planned, config, command=["gallery", "run", *words])
    print(reports.text(report, folder))
    if len(planned) > 1:
        print(reports.named(folder))
    if report.interrupted_by:
        return INTERRUPTED
    return 0 if report.passed else 1


# Options that a comparison decides itself: its length, its folder, and its one host.
_OF_COMPARE = (
    *("compiler_opt", "dry_run", "run_dir", "log_interval", "max_steps", "epochs"),
    *("checkpoint_every", "keep", "resume", "max_restarts"),
    *("nnodes", "node_rank", "master_addr", "master_port"),
)


@_command(
    "compare",
    *(TrainConfig, LaunchConfig, CompareConfig),
    operands={
        "batches": {
            **{"nargs": "*", "metavar": "BATCH"},
            "help": "none, or two folders of `gallery run` or `prepare.sh --run`; exit code 1: a "
            "regression",
        }
    },
    without=_OF_COMPARE,
)
def compare(
    words: Words,
    config: TrainConfig,
    launch_config: LaunchConfig,
    compare_config: CompareConfig,
    operands: Operands,
) -> int | None:
    """Compare the baseline with the accelerated backend, in turns, or two batches: BEFORE AFTER."""
    if operands.batches:
        if len(words) != 2 or len(operands.batches) != 2:
            raise InputError(
                "gallery compare takes two batches and no option, or options alone; "
                f"got {' '.join(words)}.",
                parameter="batches",
            )
        from gallery_lib.notebooks import reports

        with _reading(" or ".join(operands.batches)):
            before, after = (reports.read_report(Path(folder)) for folder in operands.batches)
            print(reports.text_of_changes(before, after))
            return 1 if reports.regressions(reports.changes(before, after)) else 0
    with Progress() as progress:
        with progress.importing():
            from gallery_lib.measure.comparison.compare import compare_backend
            from gallery_lib.report import tables
            from gallery_lib.train import precision
        level, dtype = config.amp_level, config.amp_dtype
        both = precision.described(level, dtype, hardware.device_type())
        progress.say(f"precision of both: {both}")
        comparison = compare_backend(config, launch_config, compare_config, progress=progress)
    print(tables.comparison_text(comparison, details=False))
    print(f"all tables: gallery show {comparison.folder}")
    return None


@_command(
    "bench",
    BenchConfig,
    operands={"tasks": {"nargs": "*", "metavar": "TASK", "help": "or FILE.py:NAME (default: all)"}},
)
def bench(words: Words, config: BenchConfig, operands: Operands) -> int:
    """Measure tasks in variants: eager, compiled, other libraries, ours, each technique."""
    progress = Progress()
    with progress.importing():
        from gallery_lib.measure import bench as measure
        from gallery_lib.report import style
        from gallery_lib.report.bench import chart, complete, markdown, text
    progress.clear()

    def write(folder: Path, bench: Bench) -> None:
        style.save(chart(bench).draw(), folder / "bench.png")
        (folder / "bench.md").write_text(markdown(bench, "bench.png"), encoding="utf-8")

    folder, result = measure.run(
        operands.tasks, config, command=["gallery", "bench", *words], after_task=write
    )
    print(text(result))
    print(f"results: {folder}/bench.json, tables: bench.md, picture: bench.png")
    return 0 if complete(result) else 1


@_command("try", TryConfig, script="SCRIPT.py … | -- COMMAND …")
def try_(words: Words, config: TryConfig, command: Words) -> int:
    """Try an unmodified training script, plain and accelerated, in turns, with a verdict."""
    with Progress() as progress:
        with progress.importing():
            from gallery_lib.report import trial as report
            from gallery_lib.system.files import atomic_write, write_json
            from gallery_lib.trial.pace import read
            from gallery_lib.trial.trial import run
        for name, file in (("json", config.json), ("html", config.html)):
            if file and not Path(file).absolute().parent.is_dir():
                raise InputError(f"{name}={file}: its folder does not exist.", parameter=name)
            if file and Path(file).is_dir():
                raise InputError(f"{name}={file} is a folder. Name a file.", parameter=name)
        before = read(Path(config.against)) if config.against else None
        trial = run(command, config, progress)
    verdict, lead = trial.verdict, report.verdict(trial)
    if before:
        verdict, lead = report.against(before, trial, Path(config.against or "").name)
        print(lead)
    print(report.text(trial))
    if config.json:
        write_json(Path(config.json), dataclasses.asdict(trial))
    if config.html:
        with atomic_write(Path(config.html)) as page:
            page.write(report.page(trial, lead))
    return 3 if config.fail_if == verdict else 0


@_command("lab up", LabConfig)
def lab_up(words: Words, config: LabConfig) -> None:
    """Make hosts on this machine, with emulated links and CPU shares."""
    from gallery_lib.cluster import Lab

    made = Lab(config.hosts, config.rate, config.cpus, config.name).up()
    made.detach()
    print(made.described())


@_command("lab run", LabRunConfig, behind_dashes="SCRIPT.py or COMMAND …")
def lab_run(words: Words, config: LabRunConfig, command: Words) -> None:
    """Run a Python script over torchrun, or any command, on every host of a lab."""
    from gallery_lib.cluster.lab import Lab, run_on_hosts

    run_on_hosts(Lab.named(config.name), command, config)


@_command("lab status")
def lab_status(words: Words) -> None:
    """Show the labs that are up."""
    from gallery_lib.cluster import Lab, keeper

    texts = [Lab.named(name).described() for name in keeper.names_up()]
    print("\n\n".join(texts) or "no lab is up.")


@_command("lab down", LabNameConfig)
def lab_down(words: Words, config: LabNameConfig) -> None:
    """End a lab and all its processes."""
    from gallery_lib.cluster import keeper

    gone = keeper.take_down(config.name)
    for one in gone:
        print(f"the lab `{one}` is gone.")
    if config.name not in gone:
        print(f"there is no lab `{config.name}`.{did_you_mean(config.name, keeper.names_up())}")


_FOLDER = "a run, a comparison, a batch, a bench, a roofline, or a folder of runs and comparisons"


@_command("show", operands={"folder": {"metavar": "FOLDER", "help": _FOLDER}})
def show(words: Words, operands: Operands) -> None:
    """Print the tables of what a folder holds."""
    from gallery_lib.measure.roofline_result import FILE as ROOFLINE_FILE
    from gallery_lib.notebooks import reports

    folder = Path(operands.folder)
    with _reading(operands.folder):
        if (folder / "bench.json").exists():
            from gallery_lib.measure.bench_result import read_bench
            from gallery_lib.report import bench

            text = bench.text(read_bench(folder / "bench.json"))
        elif (folder / ROOFLINE_FILE).exists():
            from gallery_lib.measure.roofline_result import read_roofline
            from gallery_lib.report import roofline

            text = roofline.text(read_roofline(folder / ROOFLINE_FILE))
        elif (folder / reports.REPORT_FILE).exists():
            text = reports.text(reports.read_report(folder), folder)
        else:
            from gallery_lib.report import tables

            text = tables.folder_text(folder)
        print(text)


@_command(
    "doctor",
    operands={"folder": {"nargs": "?", "metavar": "RUN", "help": "a run, a comparison or a batch"}},
)
def doctor(words: Words, operands: Operands) -> None:
    """Say what this machine offers, or where a run's step went, and what to change."""
    with importing():
        from gallery_lib.report.doctor import text

    with _reading(operands.folder or ""):
        print(text(operands.folder))


_NOT_OF_A_FEW_STEPS = (
    *("model", "run_dir", "max_steps", "epochs", "evaluate", "log_interval"),
    *("checkpoint_every", "keep", "resume", "terminate_on_nan", "rank_timeout", "pretrained"),
    *("lr_schedule", "lr_warmup_steps", "lr_schedule_steps"),
)


@_command(
    "roofline",
    *(RooflineConfig, TrainConfig),
    operands={"task": {"metavar": "TASK", "help": "a name from `gallery list`, or FILE.py:NAME"}},
    without=_NOT_OF_A_FEW_STEPS,
)
def roofline(words: Words, asked: RooflineConfig, config: TrainConfig, operands: Operands) -> None:
    """Measure a task's training step against this machine's limits, by operators."""
    with Progress() as progress:
        with progress.importing():
            from gallery_lib.measure.roofline import measure
            from gallery_lib.report.roofline import text
        config = dataclasses.replace(config, model=operands.task)
        folder, measured = measure(config, asked, progress=progress)
    print(text(measured))
    print(f"results: {folder}/roofline.json")


@_command("list")
def list_(words: Words) -> None:
    """Name the tasks of the gallery."""
    with importing():
        from gallery_lib import tasks

    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:28} {task.title:28} {task.domain}")


@_command(
    "pack",
    operands={
        "task": {"metavar": "TASK", "help": "a name from `gallery list`"},
        "--out": {"metavar": "FILE", "help": "the archive (default: gallery-TASK.tar.gz)"},
    },
)
def pack(words: Words, operands: Operands) -> None:
    """Write one task as an archive that runs by itself on another machine."""
    with importing():
        from gallery_lib.notebooks.pack import pack as write

    print(write(operands.task, Path(operands.out or f"gallery-{operands.task}.tar.gz")))


_BUNDLE = {"file": {"metavar": "FILE", "help": "the bundle, a zip archive"}}


@_command("cache save", operands=_BUNDLE)
def cache_save(words: Words, operands: Operands) -> None:
    """Write all compiled code into one file."""
    with importing():
        from gallery_lib.compiler import bundle

    count, size = bundle.save(Path(operands.file))
    print(f"{operands.file}: {count} files of compiled code, {size / 1e6:.0f} MB unpacked")


@_command("cache load", operands=_BUNDLE)
def cache_load(words: Words, operands: Operands) -> None:
    """Take compiled code from a file of the same kind of machine.

    It is machine code: load what you trust.
    """
    with importing():
        from gallery_lib.compiler import bundle

    new, same_folder = bundle.load(Path(operands.file))
    print(f"{new} files of compiled code are new here")
    if not same_folder:
        print("The cache lies in another folder than the bundle's: C++ is compiled once more.")


# --------------------------------------------------------------------------------------------------
# Entry points


_NOTES = """\
Exit codes: 0 done; 1 a run failed, or a regression was found; 2 bad input, and nothing was started;
3 --fail-if; 130 interrupted. NO_COLOR=1 switches colours off.

`gallery COMMAND --help` has the options of each; `gallery --version` names the versions.
Training one task: python3 launch_single_task.py --help"""


LAUNCH = CommandLine(
    "launch_single_task.py", "Train one task of the gallery.", (TrainConfig, LaunchConfig)
)


def _guarded(body: Callable[[], int | None]) -> int:
    stopped = "interrupted: every process of the run has been ended."
    return exit_code_of(body, error_prefix="error", interrupted=stopped)


def launch_single_task(arguments: Sequence[str]) -> int:
    """Train one task with options of TrainConfig and LaunchConfig; return the exit code."""

    def body() -> None:
        if "--version" in arguments:
            print(version_text())
            return
        config, launch_config = LAUNCH.parse(arguments)
        launch_config = rendezvous.placed(launch_config)
        if launch_config.dry_run:
            from gallery_lib.launcher.job import dry_run

            print(dry_run(config, launch_config))
            return
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
    length = 2 if words[:1] in (["lab"], ["cache"]) else 1
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
