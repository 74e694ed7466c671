"""Parameters of a notebook, checked; those of a task's notebook completed to settings."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gallery_lib.config import (
    CompareConfig,
    Config,
    NotebookConfig,
    TrainConfig,
    YourModelConfig,
    options,
)
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_table
from gallery_lib.system import hardware

if TYPE_CHECKING:
    import torch

    from gallery_lib.tasks.task import Task

_LENGTHS = ("rounds", "block_steps")
"""Parameters that decide how long the comparison is."""
_SHOWN = ("amp_level", "batch_size", "image_size", "sequence_length", *_LENGTHS, "data_dir", "seed")


Parameters = TypeVar("Parameters")


def checked(cls: type[Parameters], parameters: dict[str, Any] | None) -> Parameters:
    """Return `parameters` as options of the class; None: what this kernel's names are set to.

    Raises:
        InputError: for an unknown parameter, a wrong type or an impossible value.
    """
    if parameters is None:
        from IPython import get_ipython

        shell = get_ipython()  # type: ignore[no-untyped-call]
        names = shell.user_ns if shell else {}
        fields = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        parameters = {name: names[name] for name in fields if name in names}
    return options.from_mapping(cls, parameters)


def process_count(asked: int | None) -> int:
    """Return `asked`, by default one process for each device, 8 at most.

    Raises:
        InputError: for more processes than this host has devices.
    """
    devices = hardware.gpu_count() or hardware.cores()
    count = asked or min(devices, 8)
    if count > devices:
        raise InputError(
            f"processes={count}: this host has {devices} device(s).", parameter="processes"
        )
    return count


@dataclass(frozen=True)
class Settings:
    """The notebook's parameters with every value decided."""

    task: Task
    profile: str
    train: TrainConfig
    compare: CompareConfig
    processes: int
    waterfall: bool = False

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

        return precision.autocast_dtype(
            self.train.amp_level, self.train.amp_dtype, self.device.type
        )

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
        from gallery_lib.train.session import backend_config

        result = backend_config(dataclasses.replace(self.train, compiler_opt=True))
        result.compute.bf16 = str(self.autocast_dtype) == "torch.bfloat16"
        result.compute.fp16 = str(self.autocast_dtype) == "torch.float16"
        return result


def completed(
    task_name: str,
    config: NotebookConfig | YourModelConfig,
    more_rows: Sequence[Sequence[str]] = (),
) -> Settings:
    """Return the settings that follow from checked parameters, and show them with `more_rows`."""
    from gallery_lib import tasks
    from gallery_lib.tasks import memory_estimate
    from gallery_lib.train import precision

    # It warns of a CUDA toolkit without a GPU whenever something is compiled.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    task, device = tasks.get(task_name), hardware.device_type()
    profile = config.profile
    if profile == "auto":
        profile = "full" if device == "cuda" else "quick"
    values = dict(task.full if profile == "full" else task.quick)
    for name in (*tasks.SIZES, *_LENGTHS):
        if (size := getattr(config, name, None)) is not None:
            values[name] = size
    compare_values = {
        f.name: values.pop(f.name) for f in dataclasses.fields(CompareConfig) if f.name in values
    }
    train = TrainConfig(
        model=task_name,
        amp_level=precision.chosen_level(config.amp_level, device),
        amp_dtype=config.amp_dtype,
        data_dir=getattr(config, "data_dir", None),
        seed=config.seed,
        **values,
    )
    if config.profile == "auto" and config.batch_size is None:
        train = memory_estimate.fitting(train)
    processes, waterfall = 1, False
    if isinstance(config, NotebookConfig):
        # Processes of one CPU share its cores: nothing is gained that is worth the reader's time.
        processes = process_count(config.processes or (None if hardware.gpu_count() else 1))
        waterfall = config.waterfall
    compare = CompareConfig(**compare_values)
    result = Settings(task, profile, train, compare, processes, waterfall)
    display_table([*_rows(result), *more_rows])
    return result


def _rows(settings: Settings) -> list[list[str]]:
    """Return the table of the settings; those that are None are left out."""
    processes = f"1 and {settings.processes}" if settings.processes > 1 else "1"
    rows = [["setting", "value"], ["profile", settings.profile], ["processes", processes]]
    for config in (settings.train, settings.compare):
        values = dataclasses.asdict(config)
        rows += [[name, str(values[name])] for name in _SHOWN if values.get(name) is not None]
    return rows
