"""PowerSGD: gradients of matrices as products of two narrow ones, with error feedback.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019: one step
of subspace iteration a training step, from where the last one ended. Vectors, and matrices that would not become smaller,
are sent as they are, and so are complex parameters. Every exchange of a bucket is made in order on one thread, as gloo needs it.
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

    def _columns(self, gradient: Tensor) -> int:
        """0: to be sent as it is."""
        if gradient.ndim < 2 or gradient.is_complex():
            return 0
        rows, columns = gradient.shape[0], gradient.shape[1:].numel()
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) < rows * columns else 0

    def _average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Means over the group, all in one message; the tensors are of one type."""
        if not any(tensor.numel() for tensor in tensors):
            return list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(
            dist.get_world_size(self.group)
        )
        dist.all_reduce(flat, group=self.group)
        return [
            part.view_as(tensor)
            for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)
        ]

    def average_(self, gradients: Sequence[Tensor], names: Sequence[str]) -> None:
        """Replace each gradient by the low-rank form of its mean; what that loses goes along the next time."""
        plain: list[Tensor] = []
        narrow: list[
            tuple[str, Tensor, Tensor]
        ] = []  # name, gradient, what is to be sent: [rows, columns]
        wide = torch.promote_types(gradients[0].dtype, torch.float32)  # a bucket is of one type
        for name, gradient in zip(names, gradients, strict=True):
            columns = self._columns(gradient)
            if not columns:
                plain.append(gradient)
                continue
            matrix = gradient.reshape(gradient.shape[0], -1)
            wanted = matrix.to(wide) + self.residuals.get(name, 0.0)
            if name not in self.bases:
                seed = torch.Generator().manual_seed(len(self.bases))  # the same on every rank
                self.bases[name] = torch.randn(matrix.shape[1], columns, generator=seed).to(wanted)
            narrow.append((name, gradient, wanted))
        lefts = self._average(
            [
                *(wanted @ self.bases[name] for name, _, wanted in narrow),
                *(g.to(wide) for g in plain),
            ]
        )
        for gradient, mean in zip(plain, lefts[len(narrow) :], strict=True):
            gradient.copy_(mean)
        lefts = [torch.linalg.qr(left).Q for left in lefts[: len(narrow)]]
        rights = self._average(
            [wanted.T @ left for (_, _, wanted), left in zip(narrow, lefts, strict=True)]
        )
        for (name, gradient, wanted), left, right in zip(narrow, lefts, rights, strict=True):
            mean = left @ right.T
            usable = (
                mean.isfinite().all()
            )  # else an overflow, which the step is going to be skipped for, would stay for good
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
