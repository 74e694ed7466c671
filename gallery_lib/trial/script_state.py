"""What `probe` asks torch about a script: weights, random numbers, memory, how it compiles."""

from __future__ import annotations

import functools
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.trial import scratch
from gallery_lib.trial.attach import SCRATCH_VARIABLE

SAMPLE = 256  # elements that are kept of a parameter, and of its gradient
SEED = 0


def seed() -> None:
    """Set the seeds that a script may set itself afterwards; `attach` has set Python's."""
    torch.manual_seed(SEED)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(SEED)


def saving(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a function of torch that writes in C++, with a file of the run's own for a link."""
    root = os.environ.get(SCRATCH_VARIABLE)

    @functools.wraps(function)
    def save(*args: Any, **kwargs: Any) -> Any:
        file = args[place] if place < len(args) else kwargs.get("f")
        if root is not None and isinstance(file, str | os.PathLike):
            scratch.make_own(os.fspath(file), root, whole=True)
        return function(*args, **kwargs)

    return save


def random_states() -> list[Tensor]:
    """Return the states of torch's generators."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if cuda else [])]


def plain(name: str) -> str:
    """Return a name without what torch.compile's wrapper adds."""
    return name.replace("_orig_mod.", "")


def names_of(roots: Iterable[nn.Module]) -> dict[int, str]:
    """Return the name of each weight by its id; where models are several, with the model's."""
    models = [inside(root) for root in roots]
    return {
        id(weight): plain(name) if len(models) == 1 else f"{plain(name)} of model {number}"
        for number, model in enumerate(models, 1)
        for name, weight in model.named_parameters()
    }


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
        "weights": sum(weight.numel() for weight in weights(optimizer)),
    }


class CycleWork:
    """Operators of one cycle, by where they run: in the models' passes, or between them.

    Those of loaders, optimizers and the probe itself are counted in dictionaries that nobody keeps.
    """

    def __init__(self) -> None:
        self.passes: dict[Any, Any] = {}
        self.between: dict[Any, Any] = {}
        self._counts: Any = None

    def begin(self) -> None:
        """Enter the mode that counts; `switch` says where."""
        from gallery_lib.measure.operator_counts import Counts

        self._counts = Counts()
        self._counts.__enter__()

    def end(self) -> None:
        """Leave the mode; `passes` and `between` keep what was counted."""
        self._counts.__exit__(None, None, None)
        self._counts = None

    def switch(self, work: dict[Any, Any]) -> dict[Any, Any]:
        """Count what follows in `work`; return where it was counted before."""
        if self._counts is None:
            return {}
        before: dict[Any, Any] = self._counts.work
        self._counts.work = work
        return before

    def work(self) -> list[dict[str, Any]]:
        """Return FLOPs, bytes and type of each operation in the passes."""
        return [
            {"flops": work.flops, "bytes": work.bytes, "dtype": work.dtype}
            for work in self.passes.values()
        ]

    def items(self) -> int:
        """Return how often a tensor was read as a Python number."""
        both = [*self.passes.items(), *self.between.items()]
        return sum(work.calls for one, work in both if "_local_scalar_dense" in one.name)
