"""Settings of a task's notebook: its parameters, checked and completed.

Modules that import torch are imported inside functions. The import takes seconds, and a wrong
parameter must be refused before that.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import (
    CompareConfig,
    Config,
    NotebookConfig,
    TrainConfig,
    YourModelConfig,
    backend_config,
    options,
)
from gallery_lib.console.table import markdown_table
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells import own_cell
from gallery_lib.notebooks.cells.display import display_markdown
from gallery_lib.notebooks.cells.kernel_parameters import kernel_parameters
from gallery_lib.system import hardware, paths

if TYPE_CHECKING:
    import torch

    from gallery_lib.tasks.task import Task

_LENGTHS = ("rounds", "starts", "block_steps")
"""Parameters that decide how long the comparison is."""
_SHARES = (0.05, 0.25, 0.02, 0.18, 0.30, 0.20, 0.0)
"""Share of the notebook's time of each of its parts."""


@dataclass(frozen=True)
class Settings:
    """The notebook's parameters with every value decided."""

    task: Task
    profile: str
    train: TrainConfig
    compare: CompareConfig
    processes: int
    waterfall: bool = False
    measure_again: bool = False

    @property
    def name(self) -> str:
        """Return the task's own name, without the file that holds a changed one."""
        return self.task.name.rsplit(":", 1)[-1]

    @property
    def device(self) -> torch.device:
        """Return the device that this kernel trains on: the first GPU, or the CPU."""
        import torch

        return torch.device(hardware.device_type())

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Return the dtype of autocast; None in fp32."""
        from gallery_lib.train import precision

        return precision.autocast_dtype(self.train, self.device.type)

    @property
    def model_arguments(self) -> dict[str, int]:
        """Return what `build_model` is called with: the number of classes of the reader's data."""
        head = self.task.head
        if head is None or head.wanted(self.train) == head.outputs:
            return {}
        return {"classes": head.wanted(self.train)}

    @property
    def config(self) -> Config:
        """Return the options that `accelerate()` gets in this notebook."""
        result = backend_config(dataclasses.replace(self.train, compiler_opt=True))
        result.compute.bf16 = str(self.autocast_dtype) == "torch.bfloat16"
        result.compute.fp16 = str(self.autocast_dtype) == "torch.float16"
        return result


def settings(task_name: str, parameters: dict[str, Any] | None = None) -> Settings:
    """Check the notebook's parameters, complete and show them, and return the settings.

    Without `parameters`, those of this kernel are used.

    Raises:
        InputError: for an unknown parameter, a wrong type or an impossible value; it stops the
            notebook.
    """
    values = kernel_parameters() if parameters is None else parameters
    return _completed(task_name, options.from_mapping(NotebookConfig, values))


def with_your_code(settings: Settings, **functions: Callable[..., Any]) -> Settings:
    """Return the settings for what the cells of this notebook define.

    As shipped, the cells are the gallery's own task, and the settings stay as they are. What was
    changed is tried in this kernel, and trained and measured by what follows. Which it is, is
    shown.

    Args:
        settings: the notebook's settings.
        **functions: `build_model`, `loss`, `build_optimizer`, and the loop `train`.

    Raises:
        InputError: with the cell's line, for a mistake in the functions.
    """
    from gallery_lib import tasks
    from gallery_lib.measure.comparison import first_pass
    from gallery_lib.memory import allocator
    from gallery_lib.notebooks.cells import visible_code

    allocator.trim()  # what follows trains in other processes
    name = settings.task.name
    own = visible_code.changed_names(tasks.get(name), functions)
    notes = []
    if "train" in own:
        notes.append(
            "**The loop is yours, and stays in this notebook**: the launcher and the comparison "
            "below train with the gallery's loop."
        )
        own.remove("train")
    if not own:
        notes.append(f"Model, loss and optimizer are those of the gallery's task `{name}`.")
        display_markdown("\n\n".join(notes))
        return dataclasses.replace(
            settings,
            task=tasks.get(name),
            train=dataclasses.replace(settings.train, model=name),
        )
    functions.pop("train", None)
    model = visible_code.write_task(name, functions.values(), own)
    train = dataclasses.replace(settings.train, model=model)
    task = tasks.get(model)
    first_pass.try_once(train, settings.device)
    notes.append(
        f"**Yours: {', '.join(f'`{one}`' for one in own)}.** What follows trains and measures "
        f"that, with {task.optimizer.in_words}. `{train.model}` holds your cells."
    )
    display_markdown("\n\n".join(notes))
    return dataclasses.replace(settings, task=task, train=train)


def your_settings(
    build_model: Callable[[], Any], batch_size: int, parameters: dict[str, Any] | None = None
) -> Settings:
    """Make a task of the reader's cell, try the task, and return the settings for it.

    The cell defines `build_model`, `loss` and `make_batch`. Its source is written to a file, which
    the training processes import. One forward and backward pass runs in this kernel.

    Raises:
        InputError: with the cell's line, for a mistake in the functions; the file is removed then.
    """
    values = kernel_parameters() if parameters is None else parameters
    source = own_cell.source_of(build_model)
    known = {f.name for f in dataclasses.fields(YourModelConfig)}
    own_cell.refuse_names_of_other_cells(source, [name for name in values if name not in known])
    size = batch_size if values.get("batch_size") is None else values["batch_size"]
    config = options.from_mapping(YourModelConfig, {**values, "batch_size": size})
    file = own_cell.write_task(source, config.batch_size, config.optimizer, config.learning_rate)
    try:
        return _tried(file, config)
    except BaseException:
        file.unlink()
        raise


def _tried(file: Path, config: YourModelConfig) -> Settings:
    """Try one pass of the task and return its settings.

    The settings are shown together with the optimizer, the learning rate and the first loss.
    """
    import torch

    from gallery_lib import tasks
    from gallery_lib.measure.comparison import first_pass
    from gallery_lib.train import precision

    device = hardware.device_type()
    level = precision.chosen_level(config.amp_level, device)
    train = TrainConfig(
        model=f"{file}:TASK", amp_level=level, amp_dtype=config.amp_dtype, seed=config.seed
    )
    loss, model_class = first_pass.try_once(train, torch.device(device))
    task_name = own_cell.named_after(file, model_class)
    optimizer = tasks.get(task_name).optimizer
    arguments = "".join(f", {name} {value:g}" for name, value in optimizer.arguments.items())
    optimizer_rows = [
        ["optimizer", f"{optimizer.name}{arguments}"],
        ["learning_rate", f"{optimizer.lr:g}"],
    ]
    loss_row = ["loss of the first batch", f"{loss:.4g}"]
    return _completed(task_name, config, [*optimizer_rows, loss_row])


def _completed(
    task_name: str,
    config: NotebookConfig | YourModelConfig,
    more_rows: Sequence[Sequence[str]] = (),
) -> Settings:
    """Return the settings that follow from checked parameters, and show them with `more_rows`."""
    from gallery_lib import tasks  # imported only after the parameters are checked
    from gallery_lib.train import precision

    # It warns of a CUDA toolkit without a GPU whenever something is compiled.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    task = tasks.get(task_name)
    device = hardware.device_type()
    devices = hardware.gpu_count() or hardware.cores()
    profile = config.profile
    if profile == "auto":
        profile = "full" if device == "cuda" else "quick"
    sizes = (*tasks.SIZES, *_LENGTHS)
    values = dict(task.full if profile == "full" else task.quick)
    values |= {name: size for name in sizes if (size := getattr(config, name, None)) is not None}
    compare_values = {
        f.name: values.pop(f.name) for f in dataclasses.fields(CompareConfig) if f.name in values
    }
    same = {name: getattr(config, name, None) for name in ("amp_dtype", "data_dir", "seed")}
    same["amp_level"] = precision.chosen_level(config.amp_level, device)
    train = options.from_mapping(TrainConfig, {**values, **same, "model": task_name})
    processes = (config.processes or min(devices, 8)) if isinstance(config, NotebookConfig) else 1
    if processes > devices:
        raise InputError(
            f"processes={processes}: this host has {devices} device(s).", parameter="processes"
        )
    compare = options.from_mapping(CompareConfig, compare_values)
    waterfall = isinstance(config, NotebookConfig) and config.waterfall
    result = Settings(task, profile, train, compare, processes, waterfall, config.measure_again)
    display_markdown(markdown_table([*_rows(result, sizes), *more_rows]))
    return result


def _rows(settings: Settings, sizes: Sequence[str]) -> list[list[str]]:
    """Return the table of the settings; those that are None are left out."""
    processes = settings.processes
    rows = [
        ["setting", "value"],
        ["profile", settings.profile],
        ["processes", f"1 and {processes}" if processes > 1 else "1"],
    ]
    values = {**options.to_mapping(settings.train), **options.to_mapping(settings.compare)}
    units = {
        f.name: f.metadata.get("unit", "")
        for cls in (TrainConfig, CompareConfig)
        for f in dataclasses.fields(cls)
    }
    for name in ("amp_level", *sizes, "data_dir", "seed"):
        if values.get(name) is None:
            continue
        if name in ("image_size", "sequence_length"):
            rows.append([name, settings.task.input_size(settings.train)])
        else:
            rows.append([name, f"{values[name]} {units[name]}".rstrip()])
    return rows


def part(settings: Settings, number: int) -> None:
    """Show that a part begins, counted from 1, and about how much time the rest takes.

    The whole takes what the notebook took in the newest batch in the repository. Where the sizes
    are others, no time is shown.
    """
    left = sum(_SHARES[number - 1 :]) * _seconds_of_all(settings)
    time = "" if not left else f", {_in_words(left)} left, and less where a result is kept"
    display_markdown(f"*Part {number} of {len(_SHARES)}{time}.*")


def _seconds_of_all(settings: Settings) -> float:
    """Return how long the whole notebook takes; 0.0 where nobody knows."""
    root = paths.checkout()
    if root is None:
        return 0.0
    files = root.glob("benchmarks/results/*/gallery.json")
    batches: list[dict[str, Any]] = [json.loads(path.read_text()) for path in files]
    batches.sort(key=lambda batch: str(batch["date"]))
    if not batches or batches[-1]["parameters"].get("profile") != settings.profile:
        return 0.0
    return float(batches[-1]["notebooks"].get(settings.name, {}).get("seconds", 0.0))


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} minutes"
