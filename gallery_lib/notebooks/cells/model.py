"""The model in a task's notebook: its size and work, its source, and where a step's time goes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gallery_lib.console.table import markdown_table, number
from gallery_lib.notebooks.cells.display import display_chart, display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gallery_lib.measure.profile.step_profile import StepProfile

_LISTED = 8
"""Parts of a model that its table lists."""
_RECURRENT = ("LSTM", "GRU", "RNN")


def show_source(code: Any) -> None:
    """Show the source of a class or function: a library's, or the gallery's own."""
    source = textwrap.dedent(inspect.getsource(code)).rstrip()
    name = f"{code.__module__}.{code.__qualname__}"
    display_markdown(f"`{name}`\n\n```python\n{source}\n```")


def show_model(
    settings: Settings, model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]
) -> None:
    """Show the parameters of the model by part, and the operations of a step.

    A parameter that two parts share counts for the first. Operations are those of matrix products,
    convolutions and attention, forward and backward, as torch counts them on one batch.
    """
    total = sum(p.numel() for p in model.parameters())
    flops = _flops_of_a_sample(settings, model, loss)
    recurrent = any(type(module).__name__ in _RECURRENT for module in model.modules())
    without = " The recurrent layers are not in it: torch does not count them." if recurrent else ""
    display_markdown(
        f"{markdown_table(_parts(model, total))}\n\n{number(total / 1e6)} million parameters. One "
        f"sample takes {number(flops / 1e9)} GFLOP, forward and backward.{without}"
    )


def _parts(model: nn.Module, total: int) -> list[list[str]]:
    """Return the table of the model's largest parts, in their own order."""
    seen: set[int] = set()
    parts = []
    for name, part in model.named_children():
        own = {id(p): p.numel() for p in part.parameters() if id(p) not in seen}
        seen |= own.keys()
        if own:
            parts.append((name, type(part).__name__, sum(own.values())))
    largest = sorted(parts, key=lambda part: -part[2])[:_LISTED]
    rows = [["part", "kind", "parameters", "share"]]
    for name, kind, count in parts:
        if (name, kind, count) in largest:
            rows.append([f"`{name}`", kind, f"{count:,}", f"{count / total:.0%}"])
    rest = total - sum(count for *_, count in largest)
    if rest > 0:
        rows.append(["all others", "", f"{rest:,}", f"{rest / total:.0%}"])
    return [*rows, ["**all**", type(model).__name__, f"{total:,}", ""]]


def _flops_of_a_sample(
    settings: Settings, model: nn.Module, loss: Callable[[nn.Module, Any], torch.Tensor]
) -> float:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gallery_lib import tasks
    from gallery_lib.notebooks.cells.training import loader

    batch = next(iter(loader(settings)))
    with torch.random.fork_rng(devices=[]), FlopCounterMode(display=False) as counter:
        loss(model, batch).backward()
    model.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / (tasks.with_sizes(settings.train).batch_size or 1)


def profile(
    train: Callable[..., Any], model: Any, batches: Sequence[Any], optimizer: Any
) -> StepProfile:
    """Train on the last two of `batches` under torch's profiler, and return where the time went.

    It costs two more training steps.
    """
    from gallery_lib.measure.profile.step_profile import profile_steps

    last = list(batches)[-2:]
    return profile_steps(lambda: train(model, last, optimizer), len(last))


def show_profile(**profiles: StepProfile) -> None:
    """Show the ten largest groups of operators of a step, or of two steps side by side.

    Args:
        **profiles: by name, in order; the groups are those of the first.
    """
    from gallery_lib.report import training_charts

    display_chart(training_charts.profile(profiles))
