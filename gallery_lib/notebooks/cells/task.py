"""Functions for the notebooks of tasks: each cell is one line that calls this module.

`settings` checks the parameters and settles what they leave open. `compare` measures. The `show_…`
functions display a table as Markdown and a figure as PNG with alternative text, which need neither
JavaScript nor a trusted notebook. Details that not every reader needs are folded
(report/folded.py). Modules that import torch are imported inside functions. The import takes
seconds, and a wrong parameter must be refused before that.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import (
    CompareConfig,
    LaunchConfig,
    NotebookConfig,
    TrainConfig,
    YourModelConfig,
    options,
)
from gallery_lib.console.table import Rows, markdown_table, number
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells import own_cell
from gallery_lib.report import tables
from gallery_lib.report.folded import figure_in_words, unfolded
from gallery_lib.system import hardware, paths

if TYPE_CHECKING:
    from gallery_lib.measure.comparison.result import Comparison
    from gallery_lib.tasks.examples import Examples
    from gallery_lib.tasks.task import Task


@dataclass(frozen=True)
class Settings:
    """The notebook's parameters with everything decided."""

    task: Task
    profile: str
    train: TrainConfig
    compare: CompareConfig
    processes: int


def display_markdown(text: str) -> None:
    """Show Markdown; its plain-text form is the same text, unfolded."""
    from IPython.display import display

    display({"text/markdown": text, "text/plain": unfolded(text)}, raw=True)


def display_figure(figure: Any, alternative: str, rows: Rows | None) -> None:
    """Show a matplotlib figure as PNG with alternative text, and a folded part below it.

    The folded part holds the alternative text and a table. JupyterLab leaves out the alternative
    text of an image, so the text stands there for readers who need it.

    Args:
        figure: the matplotlib figure.
        alternative: the alternative text.
        rows: rows of a table with the same content; None where the table follows.
    """
    from IPython.display import display

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    display(
        {"image/png": buffer.getvalue(), "text/plain": alternative},
        metadata={"image/png": {"alt": alternative}},
        raw=True,
    )
    display_markdown(figure_in_words(alternative, rows))


def _assigned_names(source: str) -> list[str] | None:
    """Return the names that a cell assigns, if it holds only assignments of literals.

    Returns None for any other cell.
    """
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return None
    names = []
    for statement in statements:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else None
        )
        if (
            targets is None
            or statement.value is None  # type: ignore[attr-defined]
            or not all(isinstance(t, ast.Name) for t in targets)
        ):
            return None
        try:
            ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        except ValueError:
            return None
        names += [t.id for t in targets if isinstance(t, ast.Name)]
    return names or None


def given_parameters() -> dict[str, Any]:
    """Return the parameters that are set in this kernel.

    The parameters cell assigns them, and so does the cell that papermill inserts behind it.
    """
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call]
    if shell is None:
        return {}
    names = [
        name for source in shell.user_ns.get("In", []) for name in _assigned_names(source) or []
    ]
    return {name: shell.user_ns[name] for name in dict.fromkeys(names) if name in shell.user_ns}


def settings(task_name: str, parameters: dict[str, Any] | None = None) -> Settings:
    """Check the notebook's parameters, settle what they leave open, and show the result.

    Without `parameters`, those of this kernel are used. Raises InputError, which stops the
    notebook, for an unknown parameter, a wrong type or an impossible value.
    """
    return _settled(
        task_name,
        options.from_mapping(
            NotebookConfig, given_parameters() if parameters is None else parameters
        ),
    )


def _settled(
    task_name: str, asked: NotebookConfig | YourModelConfig, more_rows: Sequence[Sequence[str]] = ()
) -> Settings:
    """Return the settings that follow from checked parameters, and show them with `more_rows`."""
    from gallery_lib import tasks  # imported only after the parameters are checked
    from gallery_lib.train import precision

    task = tasks.get(task_name)
    device = hardware.device_type()
    devices = hardware.gpu_count() or hardware.cores()
    profile = (
        asked.profile if asked.profile != "auto" else ("full" if device == "cuda" else "quick")
    )
    values = dict(task.full if profile == "full" else task.quick)
    sizes = (*tasks.SIZES, "rounds", "starts", "block_steps")
    for name in sizes:
        if (chosen := getattr(asked, name, None)) is not None:
            values[name] = chosen
    compare_values = {
        f.name: values.pop(f.name) for f in dataclasses.fields(CompareConfig) if f.name in values
    }
    same = {name: getattr(asked, name, None) for name in ("amp_dtype", "data_dir", "seed")}
    same["amp_level"] = precision.chosen_level(asked.amp_level, device)
    train = options.from_mapping(TrainConfig, {**values, **same, "model": task_name})
    processes = (asked.processes or min(devices, 8)) if isinstance(asked, NotebookConfig) else 1
    if processes > devices:
        raise InputError(f"processes={processes}: this host has {devices} device(s).")
    result = Settings(
        task, profile, train, options.from_mapping(CompareConfig, compare_values), processes
    )
    rows = [
        ["setting", "value"],
        ["profile", profile],
        ["processes", f"1 and {processes}" if processes > 1 else "1"],
    ]
    shown = {**options.to_mapping(result.train), **options.to_mapping(result.compare)}
    units = {
        f.name: f.metadata["unit"]
        for cls in (TrainConfig, CompareConfig)
        for f in dataclasses.fields(cls)
    }
    for name in ("amp_level", *sizes, "data_dir", "seed"):
        if shown.get(name) is not None:
            is_input = name in ("image_size", "sequence_length")
            rows.append(
                [
                    name,
                    task.input_size(result.train)
                    if is_input
                    else f"{shown[name]} {units[name]}".rstrip(),
                ]
            )
    display_markdown(markdown_table([*rows, *more_rows]))
    return result


def your_settings(
    build_model: Callable[[], Any], batch_size: int, parameters: dict[str, Any] | None = None
) -> Settings:
    """Make a task of the reader's cell, try the task, and return the settings for it.

    The cell defines `build_model`, `loss` and `make_batch`. Its source is written to a file in a
    new run directory, and the training processes import that file. One forward and backward pass
    runs in this kernel. Raises InputError, with the cell's line, for a mistake in the functions;
    the directory is removed then.
    """
    given = given_parameters() if parameters is None else parameters
    source = own_cell.source_of(build_model)
    known = {f.name for f in dataclasses.fields(YourModelConfig)}
    own_cell.refuse_names_of_other_cells(source, [name for name in given if name not in known])
    size = batch_size if given.get("batch_size") is None else given["batch_size"]
    asked = options.from_mapping(YourModelConfig, {**given, "batch_size": size})
    folder = paths.new_run_dir("your-model")
    try:
        path = own_cell.write_task(
            folder, source, asked.batch_size, asked.optimizer, asked.learning_rate
        )
        return _tried(f"{path}:TASK", asked)
    except BaseException:
        shutil.rmtree(folder)
        raise


def _tried(task_name: str, asked: YourModelConfig) -> Settings:
    """Try one pass of the task and return its settings.

    The settings are shown together with the optimizer, the learning rate and the first loss.
    """
    import torch

    from gallery_lib import tasks
    from gallery_lib.measure.comparison import first_pass
    from gallery_lib.train import precision

    device = hardware.device_type()
    level = precision.chosen_level(asked.amp_level, device)
    train = TrainConfig(
        model=task_name, amp_level=level, amp_dtype=asked.amp_dtype, seed=asked.seed
    )
    loss = first_pass.try_once(train, torch.device(device))
    optimizer = tasks.get(task_name).optimizer
    arguments = "".join(f", {name} {value:g}" for name, value in optimizer.arguments.items())
    trained_with = [
        ["optimizer", f"{optimizer.name}{arguments}"],
        ["learning_rate", f"{optimizer.lr:g}"],
    ]
    return _settled(task_name, asked, [*trained_with, ["loss of the first batch", f"{loss:.4g}"]])


def show_machine() -> None:
    """Show a description of this machine, and what follows from it."""
    environment = hardware.environment()
    shown = {
        **environment,
        "memory": f"{number(environment['memory_bytes'] / 2**30)} GiB",
        "isa": ", ".join(environment["isa"]),
    }
    del shown["memory_bytes"], shown["hostname_hash"]
    rows = [
        ["this machine", ""],
        *([name, str(value)] for name, value in shown.items() if value not in (None, "")),
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
    here = hardware.environment()
    own = latest.own_results(paths.runs_dir(), titles, here)
    root = paths.checkout()
    committed = latest.nearest(root / "benchmarks" / "results", here) if root else None
    others = (
        {n: s for n, s in committed.speedups(titles).items() if n not in own} if committed else {}
    )
    shown = [{**others, **own}[name] for name in titles if name in own or name in others]
    if not shown:
        display_markdown(
            "Nothing has been measured yet: run a notebook, or all of them with `gallery run`."
        )
        return
    display_figure(speedups.figure(shown), speedups.figure_text(shown), None)
    measured_here = sum(one.machine == speedups.HERE for one in shown)
    notes = [
        (
            f"Measured on this machine: {measured_here or 'none'} of {len(titles)} notebooks. Run "
            "one, then this cell again."
        )
    ]
    notes += [latest.code_note(own.values(), here["git"]), latest.busy_note(shown)]
    if committed and others:
        which = (
            "All figures here" if len(others) == len(shown) else f"Those of the other {len(others)}"
        )
        notes.append(
            f"{which} were {committed.described}: the machine nearest to this one in the "
            "repository."
        )
    display_markdown("\n\n".join([markdown_table(speedups.rows(shown)), *filter(None, notes)]))


def show_examples(shown: Examples) -> None:
    """Show examples as a figure with its table, or as a table alone."""
    from gallery_lib.report import examples
    from gallery_lib.tasks.examples import Matrices, Pictures

    rows = examples.table_rows(shown)
    if isinstance(shown, Pictures | Matrices):
        display_figure(examples.figure(shown), examples.alternative_text(shown), rows)
    else:
        display_markdown(markdown_table(rows))


def show_data(settings: Settings) -> None:
    """Show some of the training data as the model sees it."""
    from gallery_lib import tasks

    splits: Any = tasks.data_of(settings.train)
    said = "".join(f"\n- {line}" for line in splits.notices())
    display_markdown(
        f"{len(splits.train):,} items to train on, {len(splits.held_out):,} held out."
        + (f"\n{said}" if said else "")
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
    from gallery_lib.train.loop import WEIGHTS_FILE

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
