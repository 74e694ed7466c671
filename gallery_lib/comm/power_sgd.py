"""PowerSGD: gradients of matrices as products of two narrow ones, with error feedback.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019: one step
of subspace iteration a training step, from where the last one ended. Vectors, and matrices that would not become smaller,
are sent as they are. Every exchange of a bucket is made in order on one thread, as gloo needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class PowerSGD:
    """`average_(gradients, names)` of a bucket's parameters over the group; `rank` columns for each matrix."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int) -> None:
        self.group, self.rank = group, rank
        self.residuals: dict[str, Tensor] = {}
        self.bases: dict[str, Tensor] = {}

    def _columns(self, matrix: Tensor) -> int:
        """0: to be sent as it is."""
        rows, columns = matrix.shape
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) < matrix.numel() else 0

    def _average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Means over the group, all in one message."""
        if not tensors:
            return []
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(dist.get_world_size(self.group))
        dist.all_reduce(flat, group=self.group)
        return [part.view_as(tensor) for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]

    def average_(self, gradients: Sequence[Tensor], names: Sequence[str]) -> None:
        """Replace each gradient by the low-rank form of its mean; what that loses goes along the next time."""
        plain: list[Tensor] = []
        narrow: list[tuple[str, Tensor, Tensor]] = []  # name, gradient, what is to be sent: [rows, columns] in fp32
        for name, gradient in zip(names, gradients, strict=True):
            matrix = gradient.reshape(gradient.shape[0], -1) if gradient.ndim > 1 else gradient.new_empty(1, 0)
            columns = self._columns(matrix)
            if not columns:
                plain.append(gradient)
                continue
            wanted = matrix.float() + self.residuals.get(name, 0.0)
            if name not in self.bases:
                seed = torch.Generator().manual_seed(len(self.bases))  # the same on every rank
                self.bases[name] = torch.randn(matrix.shape[1], columns, generator=seed).to(matrix.device)
            narrow.append((name, gradient, wanted))
        lefts = self._average([*(wanted @ self.bases[name] for name, _, wanted in narrow), *(g.float() for g in plain)])
        for gradient, mean in zip(plain, lefts[len(narrow) :], strict=True):
            gradient.copy_(mean)
        lefts = [torch.linalg.qr(left).Q for left in lefts[: len(narrow)]]
        rights = self._average([wanted.T @ left for (_, _, wanted), left in zip(narrow, lefts, strict=True)])
        for (name, gradient, wanted), left, right in zip(narrow, lefts, rights, strict=True):
            mean = left @ right.T
            usable = mean.isfinite().all()  # else an overflow, which the step is going to be skipped for, would stay for good
            before = self.residuals.get(name, torch.zeros_like(wanted))
            self.residuals[name] = torch.where(usable, wanted - mean, before)
            self.bases[name] = torch.where(usable, right, self.bases[name])
            gradient.copy_(mean.view_as(gradient))

    def state_dict(self) -> dict[str, Any]:
        """Residuals of this rank, and the bases, which all ranks share."""
        return {"residuals": dict(self.residuals), "bases": dict(self.bases)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` gave."""
        self.residuals, self.bases = dict(state["residuals"]), dict(state["bases"])
