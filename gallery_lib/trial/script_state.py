"""What `probe` asks torch about a script: weights, random numbers, memory, how it compiles."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.trial import scratch
from gallery_lib.trial.attach import SCRATCH_VARIABLE

SAMPLE = 256  # elements that are kept of a parameter, and of its gradient
SEED = 0


def seed() -> None:
    """Set the seeds that a script may set itself afterwards."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(SEED)


def saving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.save, which writes in C++, with a file of the run's own in place of a link."""
    root = os.environ.get(SCRATCH_VARIABLE)

    @functools.wraps(function)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if root is not None and isinstance(f, str | os.PathLike):
            with contextlib.suppress(OSError):
                scratch.make_own(os.fspath(f), root, whole=True)
        return function(obj, f, *args, **kwargs)

    return save


def random_states() -> list[Tensor]:
    """Return the states of torch's generators."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if cuda else [])]


def plain(name: str) -> str:
    """Return a name without what torch.compile's wrapper adds."""
    return name.replace("_orig_mod.", "")


def has_weights(module: nn.Module) -> bool:
    """Return whether a module has weights that are trained."""
    return any(weight.requires_grad for weight in module.parameters())


def weights(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the weights of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def sample(tensor: Tensor) -> list[float]:
    """Return the norm of a tensor, and some elements, always the same ones."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    flat = tensor.detach().reshape(-1)
    norm = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    if flat.numel() > SAMPLE:
        generator = torch.Generator().manual_seed(flat.numel())
        places = torch.randint(flat.numel(), (SAMPLE,), generator=generator)
        flat = flat[places.to(flat.device)]
    return [norm, *flat.double().cpu().tolist()]


def page_faults() -> int:
    """Return the page faults of this process so far that read nothing."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def compiled_graphs() -> int:
    """Return a number that changes with each compilation of this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else sum(utils.counters["stats"].values())


def inside(module: nn.Module) -> nn.Module:
    """Return the model inside what others have put around it."""
    for name in ("_forward_module", "module"):
        inner = module._modules.get(name)
        wraps = type(module).__module__.startswith(("torch.nn.parallel", "lightning"))
        if wraps and inner is not None:
            return inside(inner)
    return module


def compiles_itself(module: nn.Module) -> bool:
    """Return whether the script compiles a module."""
    return hasattr(module, "_orig_mod") or module.__dict__.get("_compiled_call_impl") is not None


def described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a report says of an optimizer."""
    group = optimizer.param_groups[0]
    return {
        "name": type(optimizer).__name__,
        "torchs": type(optimizer).__module__.startswith("torch.optim"),
        "fused": bool(group.get("fused")),
    }
