"""The registry of tasks: one file each, found by name, or the reader's own task as FILE.py:NAME."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Literal

from gallery_lib.config import TrainConfig
from gallery_lib.console import user_errors
from gallery_lib.errors import GalleryError, InputError, did_you_mean
from gallery_lib.tasks.task import Head, Splits, Task

__all__ = ["SIZES", "Head", "Splits", "Task", "data_of", "get", "names", "of", "with_sizes"]

SIZES = ("batch_size", "image_size", "sequence_length")
"""Options of a run that say how large a step is."""


def names() -> list[str]:
    """Return the names of the gallery's tasks, sorted."""
    files = Path(__file__).parent.glob("*.py")
    return sorted({path.stem for path in files} - {"__init__", "task", "memory_estimate"})


def get(name: str) -> Task:
    """Return the task called `name`, or the Task object NAME of a file for `FILE.py:NAME`.

    Raises:
        InputError: for a name that is not known (with the closest one), a missing file, or a file
            without the object.
    """
    if ".py:" in name:
        return _from_file(*name.rsplit(":", 1))
    if name not in names():
        raise InputError(
            f"model={name!r} is not a task.{did_you_mean(name, names())} Known: "
            f"{', '.join(names())}; or FILE.py:NAME.",
            parameter="model",
        )
    return importlib.import_module(f"gallery_lib.tasks.{name}").TASK


def of(config: TrainConfig) -> Task:
    """Return the task of `config`, with as many outputs as its data has classes.

    The gallery's own mock data has samples of some of ImageNet's 1000 classes, and counts as 1000.
    A folder given as data_dir has those classes that are in it.

    Raises:
        InputError: for a folder that is no such data.
    """
    task = get(config.model)
    return task.with_outputs(task.head.wanted(config)) if task.head else task


def with_sizes(config: TrainConfig, profile: Literal["quick", "full"] | None = None) -> TrainConfig:
    """Return `config` with batch size, image size and sequence length filled in.

    A size that was left open is the profile's, or else the task's own.
    """
    task = get(config.model)
    given = getattr(task, profile) if profile else {}
    sizes = {
        name: getattr(config, name) or given.get(name) or getattr(task, name) for name in SIZES
    }
    return dataclasses.replace(config, **sizes)


def data_of(config: TrainConfig) -> Splits:
    """Return the data of the task, at the sizes of `config`; InputError where they are unfit."""
    return get(config.model).data(with_sizes(config))


def _from_file(file: str, attribute: str) -> Task:
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"model={file}:{attribute}: {path} does not exist.", parameter="model")
    module_name = f"gallery_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except GalleryError:
        raise
    except SystemExit as error:
        raise InputError(
            f"model={file}:{attribute}: the file ends the program (exit code {error.code}) instead "
            "of defining a task.",
            parameter="model",
        ) from None
    except Exception as error:
        raise InputError(
            user_errors.message(error, user_errors.Line(str(path), 1)), parameter="model"
        ) from error
    task = getattr(module, attribute, None)
    if not isinstance(task, Task):
        task_names = [name for name, value in vars(module).items() if isinstance(value, Task)]
        raise InputError(
            f"model={file}:{attribute}: no Task of that name in "
            f"{path}.{did_you_mean(attribute, task_names)}",
            parameter="model",
        )
    return task
