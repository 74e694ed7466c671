"""The `gallery` command and `launch_single_task.py`: a thin face over the package.

What each command takes is declared (`CommandLine`), and from that come its parser, its help and its completion. One
message on standard error when something is wrong; a traceback only for what is a defect of ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gallery_lib.command import INTERRUPTED, exit_code_of
from gallery_lib.config import (
    BatchConfig,
    BenchConfig,
    CompareConfig,
    LabConfig,
    LabNameConfig,
    LabRunConfig,
    LaunchConfig,
    SiteConfig,
    TrainConfig,
)
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.options import CommandLine, parse_command_line
from gallery_lib.table import text_columns

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


def _run_operands(parser: argparse.ArgumentParser) -> None:
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


_RUN = CommandLine(
    "gallery run",
    "Run notebooks headless and say which of them really ran. Exit code 0: all passed; 1: not all; 130: interrupted.",
    (BatchConfig,),
    _run_operands,
)


def _run(arguments: Sequence[str]) -> int:
    config, namespace = _RUN.parse(arguments)
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


def _compare_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("batches", nargs="*", metavar="BATCH", help="none, or two: before and after, instead of any option")


_COMPARE = CommandLine(
    "gallery compare",
    "Train a task as baseline and with the accelerated backend, in turns, and say what the difference is.\n"
    "`gallery compare BEFORE AFTER`, with two folders of `gallery run` or files in benchmarks/results/, compares those.",
    (TrainConfig, LaunchConfig, CompareConfig),
    _compare_operands,
    {"compiler_opt": False, "dry_run": False},
)


def _compare_batches(before: str, after: str) -> int:
    from gallery_lib.batch import changes

    batches = changes.read_batch(before), changes.read_batch(after)
    print(changes.text(*batches))
    return 1 if any(change.regression for change in changes.changes(*batches)) else 0


def _compare(arguments: Sequence[str]) -> int | None:
    config, launch_config, compare_config, namespace = _COMPARE.parse(arguments)
    if namespace.batches:
        if len(arguments) != 2 or len(namespace.batches) != 2:
            raise InputError(f"gallery compare takes two batches and no option, or options alone; got {' '.join(arguments)}.")
        return _compare_batches(*namespace.batches)
    from gallery_lib.measure.compare import compare_backend
    from gallery_lib.report import tables

    print(tables.comparison_text(compare_backend(config, launch_config, compare_config)))
    return None


def _bench_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="tasks of the gallery, or FILE.py:NAME (default: all)")


_BENCH = CommandLine(
    "gallery bench",
    "Train tasks eagerly, with torch.compile, with other libraries and with this backend, in turns.\n"
    "Exit code 0: ours (of a waterfall, every technique) ran with parity in every task; 1: not in all.",
    (BenchConfig,),
    _bench_operands,
)


def _bench(arguments: Sequence[str]) -> int:
    asked, namespace = _BENCH.parse(arguments)
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


def _show_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", help="a run, a comparison, a batch, a bench, or a folder that holds runs and comparisons"
    )


_SHOW = CommandLine("gallery show", "Print the tables of what a folder holds.", operands=_show_operands)


def _show(arguments: Sequence[str]) -> None:
    (namespace,) = _SHOW.parse(arguments)
    from gallery_lib.batch import record, summary
    from gallery_lib.report import tables

    folder = Path(namespace.folder)
    if benches := [file for kind in ("bench", "waterfall") if (file := folder / f"{kind}.json").exists()]:
        from gallery_lib.measure.outcome import read_bench
        from gallery_lib.report import bench

        print("\n\n".join(bench.text(read_bench(file)) for file in benches))
        return
    print(summary.text(record.read_report(folder)) if (folder / record.REPORT_FILE).exists() else tables.folder_text(folder))


def _doctor_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="*", metavar="RUN", help="a run, whose steps are looked into; and the same on several processes")


_DOCTOR = CommandLine(
    "gallery doctor", "What this machine offers; where a run's step went; why several processes are slower.", operands=_doctor_operands
)


def _doctor(arguments: Sequence[str]) -> None:
    (namespace,) = _DOCTOR.parse(arguments)
    from gallery_lib.report import doctor

    print(doctor.text(namespace.folder))


def _pack_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="a name from `gallery list`")
    parser.add_argument("--out", metavar="FILE.tar.gz", help="the archive (default: gallery-TASK.tar.gz in this folder)")


_PACK = CommandLine("gallery pack", "Write one task as an archive that runs by itself on another machine.", operands=_pack_operands)


def _pack(arguments: Sequence[str]) -> None:
    (namespace,) = _PACK.parse(arguments)
    from gallery_lib.pack import pack

    print(pack(namespace.task, Path(namespace.out or f"gallery-{namespace.task}.tar.gz")))


def _plot_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="COMPARISON", help="the folder of a comparison")
    parser.add_argument("picture", metavar="PICTURE.png", help="the file to write")


_PLOT = CommandLine("gallery plot", "Draw a comparison's throughput since launch.", operands=_plot_operands)


_SITE = CommandLine(
    "gallery site", "Build the gallery's pages, which need neither server nor network. Nothing is executed: see --run.", (SiteConfig,)
)


def _site(arguments: Sequence[str]) -> None:
    (config,) = _SITE.parse(arguments)
    from gallery_lib.site.build import build

    print(build(config) / "index.html")


def _plot(arguments: Sequence[str]) -> None:
    (namespace,) = _PLOT.parse(arguments)
    if not namespace.picture.endswith(".png"):
        raise InputError(f"{namespace.picture} must end with .png.")
    from gallery_lib.measure.comparison import read_comparison
    from gallery_lib.report import plots

    comparison = read_comparison(namespace.folder)
    plots.throughput(comparison).savefig(namespace.picture, dpi=120)
    print(plots.throughput_text(comparison))


_LAB_UP = CommandLine(
    "gallery lab up",
    "Make hosts on this machine: network namespaces joined by a bridge, with shaped links and CPU shares of their own.\n"
    "They stay until `gallery lab down`. Needs root or user namespaces; exit code 2, with what is needed, where it has neither.",
    (LabConfig,),
)
_LAB_RUN = CommandLine(
    "gallery lab run",
    "Run a Python script over torchrun, or any command, on every host of a lab.\n"
    "Each gets NODE_RANK, NNODES, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME. Exit code 0: it ended with 0 on all;\n"
    "1: it failed on one, and the others were ended.",
    (LabRunConfig,),
    behind_dashes="SCRIPT.py or COMMAND …",
)
_LAB_STATUS = CommandLine("gallery lab status", "Show the labs that are up: hosts, addresses, rates, CPU shares, processes.")
_LAB_DOWN = CommandLine(
    "gallery lab down", "End a lab and all its processes, and clear what killed commands have left of others.", (LabNameConfig,)
)
_LAB = CommandLine(
    "gallery lab",
    "Several hosts on one machine, with emulated links: gallery lab up, run, status, down.",
    actions={"up": _LAB_UP, "run": _LAB_RUN, "status": _LAB_STATUS, "down": _LAB_DOWN},
)


def _lab_up(arguments: Sequence[str]) -> None:
    (config,) = _LAB_UP.parse(arguments)
    from gallery_lib.cluster.lab import Lab, status

    lab = Lab(config.hosts, config.rate, config.cpus, config.name).up()
    lab.detach()
    print(status.text(lab))


def _lab_run(arguments: Sequence[str]) -> None:
    config, command = _LAB_RUN.parse(arguments)
    from gallery_lib.cluster.lab import Lab, run

    run.run(Lab.named(config.name), command, config)


def _lab_status(arguments: Sequence[str]) -> None:
    _LAB_STATUS.parse(arguments)
    from gallery_lib.cluster.lab import lab, status

    print("\n\n".join(status.text(lab.Lab.named(name)) for name in lab.names_up()) or "no lab is up.")


def _lab_down(arguments: Sequence[str]) -> None:
    (config,) = _LAB_DOWN.parse(arguments)
    from gallery_lib.cluster.lab import lab

    gone = lab.take_down(config.name)
    for name in gone:
        print(f"the lab `{name}` is gone.")
    if config.name not in gone:
        print(f"there is no lab `{config.name}`.{did_you_mean(config.name, lab.names_up())}")


def _lab(arguments: Sequence[str]) -> None:
    actions = {"up": _lab_up, "run": _lab_run, "status": _lab_status, "down": _lab_down}
    if not arguments or arguments[0] not in actions:
        _LAB.parse(arguments)
    actions[arguments[0]](arguments[1:])


_LIST = CommandLine("gallery list", "Name the tasks of the gallery.")


def _list(arguments: Sequence[str]) -> None:
    _LIST.parse(arguments)
    from gallery_lib import tasks

    for name in tasks.names():
        task = tasks.get(name)
        print(f"{name:28} {task.title:28} {task.domain}")


def _completion_operands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh"), help="bash or zsh")


_COMPLETION = CommandLine(
    "gallery completion",
    "Print a script that completes the gallery command. Where the shell looks for it: see gallery --help.",
    operands=_completion_operands,
)


def _completion(arguments: Sequence[str]) -> None:
    (namespace,) = _COMPLETION.parse(arguments)
    from gallery_lib import completion, tasks
    from gallery_lib.batch import plan

    notebooks = sorted(path.stem for path in plan.notebooks_dir().glob("*.ipynb"))
    known = {"names": notebooks, "task": tasks.names(), "model": tasks.names()}
    print(completion.script(namespace.shell, {name: (command.does, command.line) for name, command in _COMMANDS.items()}, known))


class Command(NamedTuple):
    """A word after `gallery`."""

    run: Callable[[Sequence[str]], int | None]
    line: CommandLine
    group: str
    does: str


_MEASURE, _READ, _TAKE = "Run and measure", "Read what came out", "Look around and take away"

_COMMANDS: dict[str, Command] = {
    "run": Command(_run, _RUN, _MEASURE, "notebooks, headless, and which of them really ran"),
    "compare": Command(_compare, _COMPARE, _MEASURE, "baseline against accelerated backend, in turns; or two batches"),
    "bench": Command(_bench, _BENCH, _MEASURE, "tasks × variants, with other libraries, or one technique after another"),
    "lab": Command(_lab, _LAB, _MEASURE, "several hosts on this machine, with emulated links, to run distributed training on"),
    "show": Command(_show, _SHOW, _READ, "the tables of a run, a comparison, a batch or a bench"),
    "plot": Command(_plot, _PLOT, _READ, "a comparison's throughput since launch, as a picture"),
    "doctor": Command(_doctor, _DOCTOR, _READ, "what this machine offers; where a run's step went; why several processes are slower"),
    "list": Command(_list, _LIST, _TAKE, "the tasks of the gallery"),
    "site": Command(_site, _SITE, _READ, "the gallery as pages for a browser, with guides and a reference"),
    "pack": Command(_pack, _PACK, _TAKE, "one task as an archive that runs by itself on another machine"),
    "completion": Command(_completion, _COMPLETION, _TAKE, "a script that completes these commands in bash or zsh"),
}

EXAMPLES = {
    "gallery run --profile quick": "the whole gallery, at small sizes",
    "gallery run resnet50 -p batch_size 32 --deadline 600": "one notebook, with a parameter and a time limit",
    "gallery run --out runs/night --resume": "go on where a batch was interrupted",
    "gallery show runs/night": "its table again",
    "gallery compare runs/night runs/day": "what changed; exit code 1 for a regression",
    "gallery compare --model hf_Bert --sequence-length 128": "a task without its notebook",
    "gallery bench --waterfall resnet50": "what each technique adds",
    "gallery lab up --hosts 2 --rate 1gbit": "two hosts on this machine, with a link of that rate",
    "gallery lab run --nproc-per-node 4 -- train.py": "train.py over torchrun, on each of them",
    "gallery site --run runs/night": "the same as pages for a browser",
    "gallery pack resnet50 --out resnet50.tar.gz": "to take along",
}

_NOTES = """\
Completion, from the next shell on
  gallery completion bash > ~/.local/share/bash-completion/completions/gallery
  gallery completion zsh > "${fpath[1]}/_gallery"

Colours and progress
  A terminal gets bars and a table that is kept up to date; a file, a pipe and a terminal that calls itself dumb get a
  plain line now and then. NO_COLOR=1 switches colours off.

Exit codes
  0 done; 1 a run failed, or a regression was found; 2 bad input, and nothing was started; 130 interrupted

`gallery COMMAND --help` has the options of each. Training one task: python launch_single_task.py --help"""


def help_page() -> str:
    """What `gallery --help` prints."""
    parts = ["usage: gallery COMMAND …\n\nHow much faster does a model train with the accelerated backend, and is it the same training?"]
    for group in dict.fromkeys(command.group for command in _COMMANDS.values()):
        rows = [["  " + name, command.does] for name, command in _COMMANDS.items() if command.group == group]
        parts.append("\n".join([group, *text_columns(rows)]))
    parts.append("\n".join(["Examples", *text_columns([["  " + words, meaning] for words, meaning in EXAMPLES.items()])]))
    return "\n\n".join([*parts, _NOTES])


def main(arguments: Sequence[str] | None = None) -> int:
    """The `gallery` command."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def body() -> int | None:
        if not words or words[0] in ("-h", "--help", "help"):
            print(help_page())
            return None
        if words[0] not in _COMMANDS:
            raise InputError(f"unknown command `{words[0]}`.{did_you_mean(words[0], _COMMANDS)} Known: {', '.join(_COMMANDS)}.")
        return _COMMANDS[words[0]].run(words[1:])

    return _guarded(body)


if __name__ == "__main__":
    sys.exit(main())
