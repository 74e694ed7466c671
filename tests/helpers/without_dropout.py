"""Each task without dropout, for `--model tests/helpers/without_dropout.py:NAME`.

With dropout, two runs would draw different random numbers.
"""

from __future__ import annotations

import dataclasses

from torch import nn

from gallery_lib import tasks
from gallery_lib.tasks.task import Task
from gallery_lib.tune.choice import without_dropout


def __getattr__(name: str) -> Task:
    if name not in tasks.names():
        raise AttributeError(name)
    task = tasks.get(name)

    def build_model() -> nn.Module:
        model = task.build_model()
        without_dropout(model)
        return model

    return dataclasses.replace(task, build_model=build_model)
