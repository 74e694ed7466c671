"""Calls of the cells in the notebooks of tasks, in `your_model` and in the index.

`settings` checks the parameters and completes them. `compare` measures. The `show_…` functions
display a table as Markdown and a figure as PNG with alternative text (display.py). Details that not
every reader needs are folded (report/folded.py). Modules that import torch are imported inside
functions, after the parameters are checked.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import LaunchConfig
from gallery_lib.console.table import markdown_table, number
from gallery_lib.notebooks.cells.display import display_figure, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings, settings, your_settings
from gallery_lib.report import tables
from gallery_lib.system import hardware, paths

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison
    from gallery_lib.tasks.examples import Examples

__all__ = [
    "Settings",
    "compare",
    "compare_on_several",
    "settings",
    "show_break_even",
    "show_comparison",
    "show_data",
    "show_examples",
    "show_losses",
    "show_machine",
    "show_predictions",
    "show_results",
    "show_scaling",
    "show_step_times",
    "show_techniques",
    "show_throughput",
    "your_settings",
]


def show_machine() -> None:
    """Show a description of this machine, and what follows from it."""
    environment = hardware.machine_facts()
    facts = {
        **environment,
        "memory": f"{number(environment['memory_bytes'] / 2**30)} GiB",
        "isa": ", ".join(environment["isa"]),
    }
    del facts["memory_bytes"], facts["hostname_hash"]
    rows = [
        ["this machine", ""],
        *([name, str(value)] for name, value in facts.items() if value not in (None, "")),
    ]
    notes = []
    if environment["device"] == "cpu" and not hardware.computes_in_bf16("cpu"):
        notes.append(
            "This CPU has no bfloat16 units: O1 is slower than O0 here, so `amp_level=auto` "
            "chooses O0."
        )
    if environment["device"] == "cpu":
        notes.append("There is no GPU here: GPU figures are **not measured**.")
    if hardware.cpp_compiler() is None:
        notes.append(
            "There is no C++ compiler here, which compiling for the CPU needs: install g++."
        )
    display_markdown("\n\n".join([markdown_table(rows), *notes]))


def show_results() -> None:
    """Show the newest result of each notebook that measures.

    Results in the folder of runs come first. For other notebooks, the committed result of the
    machine nearest to this one is shown.
    """
    from gallery_lib import tasks
    from gallery_lib.notebooks.batch import latest
    from gallery_lib.report import speedups

    titles = {
        **{name: tasks.get(name).title for name in tasks.names()},
        "your_model": "Your own model",
    }
    here = hardware.machine_facts()
    own = latest.own_results(paths.runs_dir(), titles, here)
    root = paths.checkout()
    committed = latest.nearest(root / "benchmarks" / "results", here) if root else None
    others = (
        {n: s for n, s in committed.speedups(titles).items() if n not in own} if committed else {}
    )
    results = [{**others, **own}[name] for name in titles if name in own or name in others]
    if not results:
        display_markdown(
            "Nothing has been measured yet: run a notebook, or all of them with `gallery run`."
        )
        return
    display_figure(speedups.figure(results), speedups.figure_text(results), None)
    measured_here = sum(result.machine == speedups.HERE for result in results)
    notes = [
        f"Measured on this machine: {measured_here or 'none'} of {len(titles)} notebooks. Run "
        "one, then this cell again."
    ]
    notes += [latest.code_note(own.values(), here["git"]), latest.busy_note(results)]
    if committed and others:
        which = (
            "All figures here"
            if len(others) == len(results)
            else f"Those of the other {len(others)}"
        )
        notes.append(
            f"{which} were {committed.described}: the machine nearest to this one in the "
            "repository."
        )
    display_markdown("\n\n".join([markdown_table(speedups.rows(results)), *filter(None, notes)]))


def show_examples(content: Examples) -> None:
    """Show examples as a figure with its table, or as a table alone."""
    from gallery_lib.report import examples
    from gallery_lib.tasks.examples import Matrices, Pictures

    rows = examples.table_rows(content)
    if isinstance(content, Pictures | Matrices):
        display_figure(examples.figure(content), examples.alternative_text(content), rows)
    else:
        display_markdown(markdown_table(rows))


def show_data(settings: Settings) -> None:
    """Show some of the training data as the model sees it."""
    from gallery_lib import tasks

    splits: Any = tasks.data_of(settings.train)
    notices = "".join(f"\n- {line}" for line in splits.notices())
    display_markdown(
        f"{len(splits.train):,} items to train on, {len(splits.held_out):,} held out."
        + (f"\n{notices}" if notices else "")
    )
    if settings.task.data_examples is not None:
        show_examples(settings.task.data_examples(splits))


def show_predictions(settings: Settings, comparison: Comparison) -> None:
    """Show the model's predictions on held-out data, before and after training.

    Before training, the model has its initial weights; afterwards, the weights that compiler-opt
    trained.
    """
    import torch

    from gallery_lib import tasks
    from gallery_lib.train.weights import WEIGHTS_FILE

    if settings.task.predictions is None:
        display_markdown("This task shows no predictions.")
        return
    path = Path(comparison.folder) / list(comparison.variants)[1] / WEIGHTS_FILE
    models = {}
    for title in ("before", "after"):
        torch.manual_seed(settings.train.seed)
        models[title] = tasks.of(settings.train).build_model()
    models["after"].load_state_dict(torch.load(path, weights_only=True))
    show_examples(settings.task.predictions(models, tasks.data_of(settings.train)))
    path.unlink()  # up to half a gigabyte, written only for this picture


def compare(settings: Settings, processes: int) -> Comparison:
    """Compare the baseline with the accelerated backend on `processes` processes, in turns."""
    from gallery_lib.measure.comparison.compare import compare_backend

    train = dataclasses.replace(settings.train, save_weights=settings.task.predictions is not None)
    return compare_backend(train, LaunchConfig(nproc_per_node=processes), settings.compare)


def compare_on_several(settings: Settings) -> Comparison | None:
    """Compare on all devices, in half as many turns and without evaluation.

    Each GPU takes a whole batch. Processes that share the cores of one CPU share the batch as well.
    Returns None where there is only one device.
    """
    from gallery_lib import tasks
    from gallery_lib.measure.comparison.compare import compare_backend

    if settings.processes == 1:
        return None
    train = dataclasses.replace(settings.train, evaluate=False)
    if hardware.device_type() == "cpu":
        together, item = tasks.with_sizes(train).batch_size or 1, settings.task.samples_per_item
        train = dataclasses.replace(
            train, batch_size=max(1, together // item // settings.processes) * item
        )
    fewer = dataclasses.replace(
        settings.compare,
        rounds=max(4, settings.compare.rounds // 2),
        block_steps=min(settings.compare.block_steps, max(3, settings.compare.block_steps // 2)),
    )
    launch = LaunchConfig(nproc_per_node=settings.processes)
    return compare_backend(train, launch, fewer)


def show_comparison(comparison: Comparison | None) -> None:
    """Show the verdict, with the tables folded."""
    if comparison is None:
        display_markdown(
            "**Not measured**: this machine has one device, so there is no run on several."
        )
        return
    display_markdown(tables.comparison_markdown(comparison))


def show_throughput(comparison: Comparison) -> None:
    """Show the throughput since launch."""
    from gallery_lib.report import plots

    display_figure(
        plots.throughput(comparison),
        plots.throughput_text(comparison),
        plots.throughput_rows(comparison),
    )


def show_losses(comparison: Comparison) -> None:
    """Show the loss curves of both variants."""
    from gallery_lib.report import plots

    display_figure(
        plots.losses(comparison), plots.losses_text(comparison), plots.losses_rows(comparison)
    )


def show_step_times(comparison: Comparison) -> None:
    """Show the distributions of step times."""
    from gallery_lib.report import plots

    display_figure(
        plots.step_times(comparison),
        plots.step_times_text(comparison),
        plots.step_times_rows(comparison),
    )


def show_break_even(comparison: Comparison) -> None:
    """Show when the longer start-up has paid off, or why it has not."""
    from gallery_lib.report import plots, verdict

    if comparison.break_even_steps is None:
        display_markdown(verdict.break_even_line(comparison))
        return
    display_figure(
        plots.break_even(comparison),
        plots.break_even_text(comparison),
        plots.break_even_rows(comparison),
    )


def show_scaling(one: Comparison, several: Comparison | None) -> None:
    """Show one process beside several: total rates, and how well the rates add up."""
    if several is None:
        show_comparison(None)
        return
    display_markdown(tables.scaling_markdown(one, several))


def show_techniques(comparison: Comparison) -> None:
    """Show what the backend did in this run."""
    display_markdown(markdown_table(tables.techniques_rows(comparison.candidate.techniques)))
