"""Gradient probe: a variant's gradients on a few batches, reduced to what the parity check needs.

For every parameter it keeps, for each of the batches, the squared norm of its gradient and a fixed
random sample of its elements. The probe runs on the run's own model (compiled, laid out,
distributed as it is), with the initial weights. It puts everything back afterwards.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.train.session import Session

# Number of first batches that are probed, and that are shown to be the same. Half precision needs
# as many to average its noise out. In fp32 a batch tells flips from faults.
PROBE_BATCHES = 4
SAMPLE = 512  # gradient elements kept per parameter and batch
_PIECE = 2**22


def widen(model: nn.Module) -> None:
    """Convert the model to float64 in place, and have its calls convert floating-point inputs."""
    model.double()

    def widened(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    def to_float64(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tuple(map(widened, args)), {name: widened(v) for name, v in kwargs.items()}

    model.register_forward_pre_hook(to_float64, with_kwargs=True)


def initial_state(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Return a copy, on the CPU, of the model's weights and buffers.

    It lies in an unlinked file in `folder`, mapped into memory: it takes none that the run needs.
    """
    path = folder / f"initial-{os.getpid()}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(model.state_dict(), path)
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    finally:
        path.unlink(missing_ok=True)


def digest(value: Any) -> str:
    """Return the SHA-256 of shapes, dtypes and bits, in logical order, of the tensors inside."""
    result = hashlib.sha256()
    for tensor in tensors_in(value):
        result.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        result.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return result.hexdigest()


def differences_of_start(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return what two probed runs did not share at their start: initial weights, first batches."""
    differences = ["initial weights"] if one["weights"] != other["weights"] else []
    pairs = zip(one["first_batches"], other["first_batches"], strict=False)
    return differences + [f"batch {number}" for number, (a, b) in enumerate(pairs, 1) if a != b]


def _sample_indices(elements: int) -> Tensor:
    if elements <= SAMPLE:
        return torch.arange(elements)
    return torch.randint(elements, (SAMPLE,), generator=torch.Generator().manual_seed(elements))


def _square_norm(gradient: Tensor) -> float:
    # A piece at a time: a copy in float64 as a whole might not fit.
    return sum(float(piece.double().square().sum()) for piece in gradient.split(_PIECE))


def run_probe(
    session: Session, initial: dict[str, Tensor], batches: list[Any], *, restore: bool = True
) -> dict[str, Any]:
    """Return gradient statistics on `batches` at the initial weights, free of the loss scale.

    The session's state is as before. Without `restore`, which spares a copy of the weights, the
    model has the initial ones.
    """
    model = session.plain
    current = (
        {name: value.detach().clone() for name, value in model.state_dict().items()}
        if restore
        else initial
    )
    model.load_state_dict(initial)
    square_norms: dict[str, list[float]] = {}
    samples: dict[str, list[list[float]]] = {}
    for number, batch in enumerate(batches):
        session.optimizer.zero_grad(set_to_none=True)
        session.backward(session.forward(batch))
        scale = session.scaler.get_scale()
        for name, p in model.named_parameters():
            if p.grad is None:
                continue
            gradient = p.grad.detach().contiguous().flatten()  # logical order in any layout
            indices = _sample_indices(gradient.numel()).to(gradient.device)
            # Batches that give it no gradient count as zeros.
            norms = square_norms.setdefault(name, [0.0] * len(batches))
            kept = samples.setdefault(name, [[0.0] * len(indices) for _ in batches])
            norms[number] = _square_norm(gradient) / scale**2
            kept[number] = (gradient[indices].double() / scale).tolist()
    session.optimizer.zero_grad(set_to_none=True)
    model.load_state_dict(current)
    return {"batches": len(batches), "square_norms": square_norms, "samples": samples}


def relative_error(sample: list[float], exact: list[float]) -> float:
    """Return ‖sample − exact‖ / ‖exact‖; inf where it is not a number or the exact one is zero."""
    a, b = torch.tensor(sample, dtype=torch.float64), torch.tensor(exact, dtype=torch.float64)
    norm = float(b.norm())
    error = float((a - b).norm()) / norm if norm > 0 else math.inf
    return error if error == error else math.inf
