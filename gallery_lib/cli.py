"""The `gallery` command and `launch_single_task.py`: a thin face over the package.

Exit code 0: done. 2: bad input, nothing was started. 1: a run failed, or a regression was found. 130: interrupted. One
message on standard error; a traceback only for what is a defect of ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gallery_lib.command import INTERRUPTED, exit_code_of
from gallery_lib.config import BatchConfig, BenchConfig, CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.options import parse_command_line

if TYPE_CHECKING:
    from gallery_lib.measure.outcome import Bench


def _guarded(body: Callable[[], int | None]) -> int:
    return exit_code_of(body, error_prefix="error", interrupted="interrupted: every process of the run has been ended.")


def launch_single_task(arguments: Sequence[str]) -> int:
    """Train one task; the options are those of TrainConfig and LaunchConfig."""

    def body() -> None:
        config, launch_config = parse_command_line(
            arguments, TrainConfig, LaunchConfig, prog="launch_single_task.py", description="Train one task of the gallery, over torchrun."
        )
        from gallery_lib import launcher
        from gallery_lib.report import tables

        if launch_config.dry_run:
            print(launcher.dry_run(config, launch_config))
            return
        results = launcher.launch(config, launch_config)
        if results is not None:
            print(tables.results_text(results))
            print(f"results: {results.config['run_dir']}/results.json")

    return _guarded(body)


def _run(arguments: Sequence[str]) -> int:
    def operands(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks of the gallery, or paths of others (default: all)")
        parser.add_argument(
            "-p",
            nargs=2,
            action="append",
            default=[],
            metavar=("PARAMETER", "VALUE"),
            dest="given",
            help="a parameter, for the notebooks that have it; may be repeated",
        )

    config, namespace = parse_command_line(
        arguments,
        BatchConfig,
        prog="gallery run",
        description="Run notebooks headless and say which of them really ran. Exit code 0: all passed; 1: not all; 130: interrupted.",
        operands=operands,
    )
    from gallery_lib.batch import plan

    planned = plan.plan(namespace.names, config.profile, dict(namespace.given))
    from gallery_lib.batch import files, live, schedule, summary

    with live.shown(len(planned)) as observer:
        folder, report = schedule.run(planned, config, command=["gallery", "run", *arguments], observer=observer)
    print(summary.text(report))
    print(files.named(folder))
    if report.interrupted_by:
        return INTERRUPTED
    return 0 if report.passed else 1


def _compare_batches(before: str, after: str) -> int:
    from gallery_lib.batch import changes

    batches = changes.read_batch(before), changes.read_batch(after)
    print(changes.text(*batches))
    return 1 if any(change.regression for change in changes.changes(*batches)) else 0


def _compare(arguments: Sequence[str]) -> int | None:
    if len(arguments) == 2 and not any(word.startswith("-") for word in arguments):
        return _compare_batches(*arguments)
    config, launch_config, compare_config = parse_command_line(
        arguments,
        TrainConfig,
        LaunchConfig,
        CompareConfig,
        prog="gallery compare",
        description="Train a task as baseline and with the accelerated backend, in turns, and say what the difference is.\n"
        "`gallery compare BEFORE AFTER`, with two folders of `gallery run` or files in benchmarks/results/, compares those.",
        fixed={"compiler_opt": False, "dry_run": False},
    )
    from gallery_lib.measure.compare import compare_backend
    from gallery_lib.report import tables

    print(tables.comparison_text(compare_backend(config, launch_config, compare_config)))
    return None


def _bench(arguments: Sequence[str]) -> int:
    def operands(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("tasks", nargs="*", metavar="TASK", help="tasks of the gallery, or FILE.py:NAME (default: all)")

    asked, namespace = parse_command_line(
        arguments,
        BenchConfig,
        prog="gallery bench",
        description="Train tasks eagerly, with torch.compile, with other libraries and with this backend, in turns.\n"
        "Exit code 0: ours (of a waterfall, every technique) ran with parity in every task; 1: not in all.",
        operands=operands,
    )
    from gallery_lib.measure import bench as measure
    from gallery_lib.report import bench as report

    def write(folder: Path, found: Bench) -> None:
        picture = f"{found.kind}.png"
        report.figure(found).savefig(folder / picture, dpi=120)
        (folder / f"{found.kind}.md").write_text(report.markdown(found, picture), encoding="utf-8")

    folder, found = measure.run(namespace.tasks, asked, command=["gallery", "bench", *arguments], done=write)
    print(report.text(found))
    print(f"results: {folder}/{found.kind}.json, tables: {found.kind}.md, picture: {found.kind}.png")
    return 0 if report.complete(found) else 1


def _show(arguments: Sequence[str]) -> None:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise InputError("usage: gallery show FOLDER (a run, a comparison, a batch, a bench, or a folder that holds runs and comparisons)")
    from gallery_lib.batch import record, summary
    from gallery_lib.report import tables

    folder = Path(arguments[0])
    if benches := [file for kind in ("bench", "waterfall") if (file := folder / f"{kind}.json").exists()]:
        from gallery_lib.measure.outcome import read_bench
        from gallery_lib.report import bench

        print("\n\n".join(bench.text(read_bench(file)) for file in benches))
        return
    print(summary.text(record.read_report(folder)) if (folder / record.REPORT_FILE).exists() else tables.folder_text(folder))


def _doctor(arguments: Sequence[str]) -> None:
    if any(word.startswith("-") for word in arguments):
        raise InputError("usage: gallery doctor [RUN [RUN_ON_SEVERAL_PROCESSES]]")
    from gallery_lib.report import doctor

    print(doctor.text(arguments))


def _pack(arguments: Sequence[str]) -> None:
    if len(arguments) not in (1, 3) or arguments[0].startswith("-") or (len(arguments) == 3 and arguments[1] != "--out"):
        raise InputError("usage: gallery pack TASK [--out FILE.tar.gz] (default: gallery-TASK.tar.gz in this folder)")
    from gallery_lib.pack import pack

    name = arguments[0]
    print(pack(name, Path(arguments[2] if len(arguments) == 3 else f"gallery-{name}.tar.gz")))


def _plot(arguments: Sequence[str]) -> None:
    if len(arguments) != 2 or not arguments[1].endswith(".png"):
        raise InputError("usage: gallery plot COMPARISON_FOLDER PICTURE.png (throughput since launch)")
    from gallery_lib.measure.compare import read_comparison
    from gallery_lib.report import plots

    comparison = read_comparison(arguments[0])
    plots.throughput(comparison).savefig(arguments[1], dpi=120)
    print(plots.throughput_text(comparison))


def _list(arguments: Sequence[str]) -> None:
    from gallery_lib import tasks

    if arguments:
        raise InputError(f"gallery list takes no arguments, got {' '.join(arguments)}")
    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:28} {task.title:28} {task.domain}")


_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int | None], str]] = {
    "list": (_list, "the tasks of the gallery"),
    "run": (_run, "notebooks, headless, and which of them really ran (options: gallery run --help)"),
    "compare": (_compare, "baseline against accelerated backend, in turns (options: gallery compare --help); or two batch runs"),
    "bench": (_bench, "tasks × variants, with other libraries, or one technique after another (options: gallery bench --help)"),
    "show": (_show, "the tables of what a folder of runs holds, of a batch, or of a bench"),
    "doctor": (_doctor, "what this machine offers; where a run's step went; why several processes are slower than one"),
    "pack": (_pack, "one task as an archive that runs by itself on another machine"),
    "plot": (_plot, "a comparison's throughput since launch, as a picture"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The `gallery` command."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def body() -> int | None:
        if not words or words[0] in ("-h", "--help", "help"):
            print("usage: gallery COMMAND …\n")
            print("\n".join(f"  {name:10} {meaning}" for name, (_, meaning) in _COMMANDS.items()))
            print("\nTraining one task: python launch_single_task.py --help")
            return None
        if words[0] not in _COMMANDS:
            raise InputError(f"unknown command `{words[0]}`.{did_you_mean(words[0], _COMMANDS)} Known: {', '.join(_COMMANDS)}.")
        return _COMMANDS[words[0]][0](words[1:])

    return _guarded(body)


if __name__ == "__main__":
    sys.exit(main())
