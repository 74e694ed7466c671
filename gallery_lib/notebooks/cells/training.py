"""Training in the notebook's own kernel: plain batches, loss curves, and the diff of two cells."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.notebooks.cells.kernel_parameters import cell_that_assigns
from gallery_lib.notebooks.cells.task_settings import Settings

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


class ReadyBatches:
    """The items of a task's data set, with a `collate` that makes a batch as the model takes it.

    The gallery's own loader finishes batches on the device. A plain loop has no such loader.
    """

    def __init__(self, items: Any) -> None:
        """Take the data set of a task."""
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch on to a data set that asks for it."""
        if hasattr(self.items, "set_epoch"):
            self.items.set_epoch(epoch)

    def collate(self, items: list[Any]) -> Any:
        """Return the batch of these items, finished, on the CPU."""
        import torch
        from torch.utils.data import default_collate

        batch = getattr(self.items, "collate", default_collate)(items)
        if not hasattr(self.items, "finish_batch"):
            return batch
        return self.items.finish_batch(batch, torch.contiguous_format)


def loader(settings: Settings) -> DataLoader[Any]:
    """Return a DataLoader over the training data, whose batches are what the model takes.

    It is torch's own, and the batches are on the CPU. It is shuffled with the notebook's seed, so
    two loaders give the same batches.
    """
    import torch
    from torch.utils.data import DataLoader

    from gallery_lib import tasks
    from gallery_lib.data.loading.length_buckets import LengthBucketSampler

    train, task = tasks.with_sizes(settings.train), settings.task
    assert train.batch_size is not None
    data: Any = ReadyBatches(tasks.data_of(train).train)
    items = max(1, train.batch_size // task.samples_per_item)
    generator = torch.Generator().manual_seed(train.seed)
    lengths = getattr(data.items, "lengths", None)
    sampler = None if lengths is None else LengthBucketSampler(lengths, items, generator)
    return DataLoader(
        data,
        batch_size=items,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        collate_fn=data.collate,
        generator=generator,
    )


def on_device(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches, any nesting of tensors, on the device."""
    from gallery_lib.data.loading.device_loader import to_device

    for batch in batches:
        yield to_device(batch, device)


def show_training(**curves: Sequence[float]) -> None:
    """Show the losses of training in this notebook, a curve for each name.

    The steps are two passes over the same batches. The title says whether the losses of the second
    pass are smaller.

    Raises:
        InputError: for a curve without losses.
    """
    from gallery_lib.report import training_charts

    if empty := [name for name, losses in curves.items() if not losses]:
        raise InputError(f"{empty[0]} has no losses: does `train` return them?", parameter=empty[0])
    chart = training_charts.losses(curves)
    display_chart(chart)
    if not all(map(training_charts.fell, curves.values())):
        display_markdown(
            f"**{chart.title}.** Look at the loss, the optimizer and the loop above before you go "
            "on: what does not learn here does not learn below either."
        )


def show_diff(before: str, after: str) -> None:
    """Show what differs between two cells of this notebook, line by line.

    Args:
        before: a name that the first cell assigns.
        after: a name that the second cell assigns.

    Raises:
        InputError: where no cell that has run assigns such a name.
    """
    old, new = (_lines_of_cell(name) for name in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=len(old)))[3:]
    if not lines:
        display_markdown("The two cells are the same.")
        return
    text = "\n".join(lines)
    display_markdown(f"```diff\n{text}\n```")


def _lines_of_cell(name: str) -> list[str]:
    source = cell_that_assigns(name)
    if source is None:
        raise InputError(
            f"no cell that has run assigns `{name}`. Run the cells above.", parameter=name
        )
    return source.strip().splitlines()
