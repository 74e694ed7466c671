"""The model in the notebook's own kernel: its size and source, plain training, where time goes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gallery_lib.console.text import number
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from gallery_lib.measure.step_profile import StepProfile

_RECURRENT = ("LSTM", "GRU", "RNN")


def loader(settings: Settings) -> DataLoader[Any]:
    """Return torch's DataLoader over the training data.

    It is shuffled with the notebook's seed, so two loaders give the same batches.
    """
    import torch
    from torch.utils.data import DataLoader

    from gallery_lib import tasks
    from gallery_lib.data.loading.length_buckets import LengthBucketSampler

    train, task = tasks.with_sizes(settings.train), settings.task
    assert train.batch_size is not None
    data: Any = tasks.data_of(train).train
    items = max(1, train.batch_size // task.samples_per_item)
    generator = torch.Generator().manual_seed(train.seed)
    lengths = getattr(data, "lengths", None)
    sampler = None if lengths is None else LengthBucketSampler(lengths, items, generator)
    return DataLoader(
        data,
        batch_size=items,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        collate_fn=getattr(data, "collate", None),
        generator=generator,
    )


def on_device(batches: Iterable[Any], device: torch.device) -> Iterable[Any]:
    """Return the batches of a loader as the model takes them, on the device."""
    import torch

    from gallery_lib.data.loading.device_loader import DeviceLoader

    return DeviceLoader(batches, device, torch.contiguous_format, shard=False)


def show_training(**curves: Sequence[float]) -> None:
    """Show the losses of training in this notebook, a curve for each name.

    The steps are two passes over the same batches. The title says whether the losses of the second
    pass are smaller.

    Raises:
        InputError: for a curve without losses.
    """
    from gallery_lib.report import plots

    if empty := [name for name, losses in curves.items() if not losses]:
        raise InputError(f"{empty[0]} has no losses: does `train` return them?", parameter=empty[0])
    chart = plots.training(curves)
    display_chart(chart)
    if not all(map(plots.fell, curves.values())):
        display_markdown(
            f"**{chart.title}.** Look at the loss, the optimizer and the loop above before you go "
            "on: what does not learn here does not learn below either."
        )


def show_source(code: Any) -> None:
    """Show the source of a class or function: a library's, or the gallery's own."""
    source = textwrap.dedent(inspect.getsource(code)).rstrip()
    name = f"{code.__module__}.{code.__qualname__}"
    display_markdown(f"`{name}`\n\n```python\n{source}\n```")


def show_model(
    settings: Settings, model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]
) -> None:
    """Show the number of the model's parameters, and the operations of a step.

    Operations are those of matrix products, convolutions and attention, forward and backward, as
    torch counts them on one batch.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gallery_lib import tasks

    batch = next(iter(on_device(loader(settings), torch.device("cpu"))))
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        loss(model, batch).backward()
    model.zero_grad(set_to_none=True)
    flops = counter.get_total_flops() / (tasks.with_sizes(settings.train).batch_size or 1)
    total = sum(p.numel() for p in model.parameters())
    recurrent = any(type(module).__name__ in _RECURRENT for module in model.modules())
    without = " The recurrent layers are not in it: torch does not count them." if recurrent else ""
    display_markdown(
        f"{number(total / 1e6)} million parameters. One sample takes {number(flops / 1e9)} GFLOP, "
        f"forward and backward.{without}"
    )


def profile(
    train: Callable[..., Any], model: Any, batches: Sequence[Any], optimizer: Any
) -> StepProfile:
    """Train on the last two of `batches` under torch's profiler, and return where the time went.

    It costs two more training steps.
    """
    from gallery_lib.measure.step_profile import profile_steps

    last = list(batches)[-2:]
    return profile_steps(lambda: train(model, last, optimizer), len(last))


def show_profile(**profiles: StepProfile) -> None:
    """Show the ten largest groups of operators of a step, or of two steps side by side.

    Args:
        **profiles: by name, in order; the groups are those of the first.
    """
    from gallery_lib.report import plots

    display_chart(plots.profile(profiles))
