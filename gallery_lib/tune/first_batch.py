"""Tuning of a model at its first training step, on a real batch; the model then runs as chosen.

The hook uses the slot of torch's in-place compilation, so the module and its state dict do not
change. Earlier calls (evaluation, no gradients) run eagerly and do not tune.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.compiler.calls import compiled_call, set_compiled
from gallery_lib.config import Config
from gallery_lib.console.progress import note
from gallery_lib.tune.candidates import Candidate, candidates
from gallery_lib.tune.choice import Choice, choose

_explanations: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def explanation(model: nn.Module) -> str:
    """Return why the model runs as it does: the table of its candidates; '' if it was not tuned."""
    return _explanations.get(model, "")


def _explain(model: nn.Module, choice: Choice) -> None:
    origin = "kept from an earlier run" if choice.kept else "measured now on the first batch"
    where = f"; {choice.path} may be edited or deleted" if choice.path else ""
    last = f"{type(model).__name__} runs as `{choice.chosen}` ({origin}{where})."
    _explanations[model] = f"{choice.table()}\n{last}"
    if process_group.rank() == 0:
        note(_explanations[model])


def tune_at_first_step(
    model: nn.Module,
    config: Config,
    device: torch.device,
    done: MutableMapping[str, str],
    chosen: Callable[[Candidate], None],
) -> None:
    """Have `model` choose how it runs when it is first called to train.

    Args:
        model: changed in place at that call.
        config: the options that decide on candidates and measurement.
        device: where the model runs.
        done: receives a line about the choice, under `tuning`.
        chosen: called with the candidate, after the model has been changed to it.
    """
    eager: Any = model._call_impl

    def first_call(*args: Any, **kwargs: Any) -> Any:
        if not (model.training and torch.is_grad_enabled()):
            return eager(*args, **kwargs)
        set_compiled(model, None)
        choice = choose(model, (args, kwargs), config, device)
        candidate = next(c for c in candidates(model, config, device) if c.name == choice.chosen)
        candidate.apply(model, config.compiler, device)
        done["tuning"] = f"{choice.chosen}, of {len(choice.rows)} candidates" + (
            " (kept choice)" if choice.kept else ""
        )
        _explain(model, choice)
        chosen(candidate)
        return (compiled_call(model) or eager)(*args, **kwargs)

    set_compiled(model, first_call)
