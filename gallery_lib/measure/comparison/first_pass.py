"""First forward and backward pass of a user's own task, before any process is started for it.

Whatever is wrong with it is raised as an InputError in the reader's words, with their line of code
(console/user_errors.py). The pass takes one batch as it will be trained on, on the device that
trains, in the precision of the run. It is then repeated in float64, as the reference of a
comparison computes it. So a mistake takes seconds to be found, and not a start of all processes.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.console import user_errors
from gallery_lib.console.user_errors import NO_GRADIENT
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.measure.comparison import float64_model
from gallery_lib.tasks.task import Task
from gallery_lib.train import precision


@contextlib.contextmanager
def _in_words(otherwise: user_errors.Line | None, parameter: str | None = None) -> Iterator[None]:
    """Turn what the reader's code raises into an InputError, as a context manager.

    Args:
        otherwise: the line to name where no frame is theirs.
        parameter: the function of theirs that runs; None: any.
    """
    try:
        yield
    except GalleryError:
        raise
    except Exception as error:
        raise InputError(user_errors.message(error, otherwise), parameter=parameter) from error


def _build(task: Task) -> nn.Module:
    build_model = task.build_model
    with _in_words(user_errors.line_of_definition(build_model), "build_model"):
        model: Any = build_model()
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise user_errors.at_return(
            build_model,
            f"build_model returns the class {model.__name__}; call it: `{model.__name__}()`.",
        )
    if not isinstance(model, nn.Module):
        kind = (
            "nothing (None): is a `return` missing?"
            if model is None
            else f"a {type(model).__name__}."
        )
        raise user_errors.at_return(
            build_model, f"build_model must return a `torch.nn.Module`, and returns {kind}"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise user_errors.at_return(
            build_model,
            (
                "the model has no parameters to train. Make its layers attributes of the module, "
                "and freeze not all of them."
            ),
        )
    return model


def _batch(task: Task, config: TrainConfig, device: torch.device) -> Any:
    """Return the first training batch of the task, in its own nesting, with tensors on `device`."""
    with _in_words(None):
        data: Any = task.data(config).train
        items = max(1, (config.batch_size or task.batch_size) // task.samples_per_item)
        loader = DataLoader(
            data, batch_size=items, num_workers=0, collate_fn=getattr(data, "collate", None)
        )
        return next(iter(DeviceLoader(loader, device, torch.contiguous_format, shard=False)))


def _described(output: Any) -> str:
    """Return a phrase for messages on what a model returned; '' for a tensor."""
    if isinstance(output, Tensor):
        return ""
    if output is None:
        return "The model returns nothing (None)."
    if isinstance(output, (tuple, list)):
        return f"The model returns a {type(output).__name__}."
    fields = ", ".join(map(str, output.keys())) if isinstance(output, Mapping) else ""
    return f"The model returns an object, {type(output).__name__}" + (
        f", with {fields}." if fields else "."
    )


def _scalar(task: Task, model: nn.Module, batch: Any) -> Tensor:
    """Return the loss of the batch.

    Raises:
        InputError: where it is not one number that depends on the model.
    """
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    try:
        with _in_words(user_errors.line_of_definition(task.loss), "loss"):
            loss: Any = task.loss(model, batch)
    except InputError as error:
        described = _described(outputs[-1]) if outputs else ""
        if described and type(outputs[-1]).__name__ in str(error.__cause__):
            raise InputError(f"{described} {error}", parameter=error.parameter) from error.__cause__
        raise
    finally:
        hook.remove()
    if not isinstance(loss, Tensor):
        kind = (
            "nothing (None): is a `return` missing?"
            if loss is None
            else f"a {type(loss).__name__}."
        )
        hint = (
            " Leave `.item()` out."
            if isinstance(loss, float)
            else " Take its `.loss`."
            if hasattr(loss, "loss")
            else ""
        )
        raise user_errors.at_return(task.loss, f"the loss must be a tensor, and is {kind}{hint}")
    if loss.dim():
        raise user_errors.at_return(
            task.loss,
            (
                f"the loss has the shape {list(loss.shape)}; it must be one number. Return its "
                "`.mean()`."
            ),
        )
    if not loss.requires_grad:
        raise user_errors.at_return(task.loss, NO_GRADIENT)
    if not math.isfinite(value := float(loss.detach())):
        raise user_errors.at_return(
            task.loss,
            (
                f"the loss of the first batch is {value}. Look for a division by 0, `log(0)`, or "
                "values of great size."
            ),
        )
    return loss


def _pass(
    task: Task, model: nn.Module, batch: Any, dtype: torch.dtype | None, device: torch.device
) -> float:
    """Run one forward and backward pass and return the loss."""
    with precision.autocast(dtype, device.type):
        loss = _scalar(task, model, batch)
    with _in_words(user_errors.line_of_return(task.loss), "loss"):
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if not gradients:
        raise user_errors.at_return(task.loss, NO_GRADIENT)
    if dtype is not torch.float16:  # float16 overflows without its scaler
        for name, gradient in gradients.items():
            if not bool(gradient.isfinite().all()):
                raise user_errors.at_return(
                    task.loss,
                    (
                        f"the gradient of `{name}` is not finite in the first step. Look for "
                        "`sqrt(0)`, `log(0)` or `norm` of zeros."
                    ),
                )
    model.zero_grad(set_to_none=True)
    return float(loss.detach())


def try_once(config: TrainConfig, device: torch.device) -> tuple[float, str]:
    """Run one forward and backward pass of the task in `config`.

    Returns the loss, and the name of the model's class.

    The pass is repeated in float64. Random numbers of the caller are as before.

    Raises:
        InputError: for a mistake in the task's functions.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        with _in_words(None):
            task = tasks.of(config)
        dtype = precision.autocast_dtype(config, device.type)
        batch = _batch(task, config, device)
        model = _build(task).to(device).train()
        model_class = type(model).__name__
        first_loss = _pass(task, model, batch, dtype, device)
        float64_model.widen(model)
        try:
            _pass(task, model, batch, None, device)
        except InputError as error:
            reason = "The comparison trains the model in float64, too, as its reference, and there:"
            raise InputError(
                f"{reason} {str(error)[:1].lower()}{str(error)[1:]}",
                parameter=error.parameter,
            ) from error.__cause__
    del model, batch
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return first_loss, model_class
