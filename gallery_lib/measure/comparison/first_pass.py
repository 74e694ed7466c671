"""First forward and backward pass of a user's own task, before any process is started for it.

What Python or torch says about a mistake is raised as an InputError with the reader's line of code
(console/user_errors.py). The pass takes one batch as it will be trained on, on the device that
trains, in the precision of the run. It is then repeated in float64, as the reference of a
comparison computes it. So a mistake takes seconds to be found, and not a start of all processes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.console import user_errors
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import GalleryError, InputError
from gallery_lib.tasks.task import Task
from gallery_lib.train import precision


@contextlib.contextmanager
def _as_input_error(
    otherwise: user_errors.Line | None = None, parameter: str | None = None
) -> Iterator[None]:
    """Context: turn what the function `parameter` of the reader raises into an InputError.

    It names the line `otherwise` where no frame is the reader's.
    """
    try:
        yield
    except GalleryError:
        raise
    except Exception as error:
        raise InputError(user_errors.message(error, otherwise), parameter=parameter) from error


def _build(task: Task) -> nn.Module:
    with _as_input_error(user_errors.line_of_definition(task.build_model), "build_model"):
        model: Any = task.build_model()
    if isinstance(model, nn.Module) and any(p.requires_grad for p in model.parameters()):
        return model
    raise user_errors.at_definition(
        task.build_model,
        "build_model must return a `torch.nn.Module` that has parameters to train, and returns "
        f"{_shown(model)}.",
    )


def _shown(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"


def _batch(task: Task, config: TrainConfig, device: torch.device) -> Any:
    """Return the first training batch of the task, in its own nesting, with tensors on `device`."""
    with _as_input_error():
        data: Any = task.data(config).train
        items = max(1, (config.batch_size or task.batch_size) // task.samples_per_item)
        loader = DataLoader(
            data, batch_size=items, num_workers=0, collate_fn=getattr(data, "collate", None)
        )
        return next(iter(DeviceLoader(loader, device, torch.contiguous_format, shard=False)))


def _forward_backward(
    task: Task, model: nn.Module, batch: Any, dtype: torch.dtype | None, device: torch.device
) -> float:
    """Run one forward and backward pass and return the loss; raise InputError for a mistake."""
    with precision.autocast(dtype, device.type):
        with _as_input_error(user_errors.line_of_definition(task.loss), "loss"):
            loss: Any = task.loss(model, batch)
        if not (isinstance(loss, Tensor) and loss.dim() == 0 and loss.isfinite()):
            shown = _shown(loss)
            if isinstance(loss, Tensor):
                shown = f"of shape {list(loss.shape)}" if loss.dim() else str(loss.item())
            raise user_errors.at_definition(
                task.loss, f"the loss must be a tensor of one finite number, and is {shown}."
            )
    with _as_input_error(user_errors.line_of_definition(task.loss), "loss"):
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if not gradients:
        raise user_errors.at_definition(
            task.loss, "the loss does not depend on the model's parameters."
        )
    for name, gradient in gradients.items():
        # float16 overflows without its scaler.
        if dtype is not torch.float16 and not gradient.isfinite().all():
            raise user_errors.at_definition(
                task.loss, f"the gradient of `{name}` is not finite in the first step."
            )
    model.zero_grad(set_to_none=True)
    return float(loss.detach())


def widen(model: nn.Module) -> None:
    """Convert the model to float64 in place, and have its calls convert floating-point inputs."""
    model.double()

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    def to_float64(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tuple(map(widened, args)), {name: widened(v) for name, v in kwargs.items()}

    model.register_forward_pre_hook(to_float64, with_kwargs=True)


def try_once(config: TrainConfig, device: torch.device) -> tuple[float, str]:
    """Run one forward and backward pass of the task, and one in float64.

    Returns the loss, and the name of the model's class; InputError for a mistake in the task's
    functions. Random numbers of the caller are as before.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        with _as_input_error():
            task = tasks.of(config)
        dtype = precision.autocast_dtype(config.amp_level, config.amp_dtype, device.type)
        batch = _batch(task, config, device)
        model = _build(task).to(device).train()
        model_class = type(model).__name__
        first_loss = _forward_backward(task, model, batch, dtype, device)
        widen(model)
        try:
            _forward_backward(task, model, batch, None, device)
        except InputError as error:
            reason = "The comparison trains the model in float64, too, as its reference, and there:"
            raise InputError(
                f"{reason} {str(error)[:1].lower()}{str(error)[1:]}", parameter=error.parameter
            ) from error.__cause__
    del model, batch
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return first_loss, model_class
