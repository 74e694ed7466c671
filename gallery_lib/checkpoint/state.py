"""State of a training, taken for a checkpoint and put back: model, optimizers and the rest.

One part is common to all ranks. The other is each rank's own: random states, the position in the
data, what error feedback has kept. The file is data: it is read with `weights_only=True`, so
nothing in it is executed. Every implementation of an optimizer has torch's state dict, so each goes
on from the checkpoint of another.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from gallery_lib.checkpoint.folders import AUTO, named, newest_first, reason_of
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import comm_state_dict, load_comm_state_dict
from gallery_lib.comm.ddp import plain_module
from gallery_lib.data.loading import random_states
from gallery_lib.errors import InputError

FORMAT = 4
"""Format of checkpoints. It goes up when another version of this package could misread one."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint and its content. The tensors are pages of the file."""

    path: Path
    content: dict[str, Any]

    @property
    def step(self) -> int:
        """Return the number of steps done."""
        return int(self.content["step"])

    @property
    def world_size(self) -> int:
        """Return the number of processes that trained."""
        return len(self.content["ranks"])

    def of_rank(self) -> dict[str, Any]:
        """Return this rank's own part; ranks beyond its number share the others'."""
        return self.content["ranks"][process_group.rank() % self.world_size]


def read(path: Path) -> Saved:
    """Return the checkpoint at `path`.

    Raises:
        InputError: it is damaged, or no checkpoint of this version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of the disk, of unpickling, or of the archive
        raise InputError(
            f"{path} cannot be read: {reason_of(error)}. Delete it to go on from the one before.",
            parameter="resume",
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is no checkpoint of this version.", parameter="resume")
    return Saved(path, content)


def choose(resume: str | Path, own_folder: Path) -> Saved | None:
    """Return the checkpoint to go on from, the same on every rank. A collective call.

    Args:
        resume: `auto`, or a path.
        own_folder: the folder of this training's checkpoints, whose newest `auto` is.

    Raises:
        InputError: on every rank where there is none to use.
    """
    answer: Path | InputError | None = None
    if process_group.rank() == 0:
        own = newest_first(own_folder)
        try:
            if resume == AUTO:
                answer = own[0] if own else None
            else:
                answer = named(Path(resume).expanduser())
                if answer.resolve() in [path.resolve() for path in own[1:]]:
                    answer = InputError(
                        f"{answer} has fewer steps than {own[0].name} beside it. To go back, name "
                        "a new folder for the training, or delete the later ones.",
                        parameter="resume",
                    )
            if isinstance(answer, Path):
                read(answer)
        except InputError as error:
            answer = error
    answer = process_group.from_rank_0(answer)
    if isinstance(answer, InputError):
        raise answer
    return None if answer is None else read(answer)


@dataclass
class Parts:
    """Objects of a training whose state a checkpoint holds."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer] = ()
    schedulers: Sequence[Any] = ()
    scaler: Any = None
    loader: Any = None
    """Anything with `state_dict` and `load_state_dict`, or None."""

    def plain(self) -> nn.Module:
        """Return the user's own module, inside what distributes and compiles it."""
        inner = plain_module(self.model)
        # By name, since importing the class takes a second.
        if type(inner).__name__ == "OptimizedModule":
            inner = inner._orig_mod  # type: ignore[assignment]
        return inner

    def state(self) -> dict[str, Any]:
        """Return the common state. The tensors are the training's own, not copies."""
        scaler = {} if self.scaler is None else self.scaler.state_dict()
        parts = [*self.optimizers, *self.schedulers, *([self.scaler] if scaler else [])]
        return {
            "kinds": [type(part).__name__ for part in parts],
            "model": self.plain().state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": scaler,
        }

    def of_rank(self) -> dict[str, Any]:
        """Return the state of this rank alone."""
        return {
            "random": random_states.captured(),
            "loader": None if self.loader is None else self.loader.state_dict(),
            "communication": comm_state_dict(self.model),
        }

    def load(self, saved: Saved) -> list[str]:
        """Go on from a checkpoint; return what to announce, line by line.

        Raises:
            InputError: it is of another training.
        """
        content, of_rank = saved.content, saved.of_rank()
        before, now = content["kinds"], self.state()
        if before != now["kinds"]:
            raise InputError(
                f"{saved.path} is of another training: it has {', '.join(before) or 'no optimizer'}"
                f", and this one {', '.join(now['kinds']) or 'none'}.",
                parameter="resume",
            )
        try:
            for name, value in now["model"].items():
                dtypes = [
                    getattr(one, "dtype", None) for one in (value, content["model"].get(name))
                ]
                if None not in dtypes and dtypes[0] is not dtypes[1]:
                    raise RuntimeError(f"its {name} is {dtypes[1]}, and here it is {dtypes[0]}")
            self.plain().load_state_dict(content["model"])
            for optimizer, state in zip(self.optimizers, content["optimizers"], strict=True):
                optimizer.load_state_dict(copied(state))
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"{saved.path} is of another model: {reason_of(error)}", parameter="resume"
            ) from None
        for scheduler, state in zip(self.schedulers, content["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        if content["scaler"]:
            self.scaler.load_state_dict(content["scaler"])
        if self.loader is not None and of_rank["loader"] is not None:
            self.loader.load_state_dict(of_rank["loader"])
        said, kept = [], of_rank["communication"]
        if kept and saved.world_size == process_group.world_size():
            device = process_group.device()
            load_comm_state_dict(
                self.model,
                tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, kept),
            )
        elif kept:
            said.append(
                f"what error feedback has kept of gradients belongs to {saved.world_size} "
                "processes, and is left out"
            )
        random_states.restore(of_rank["random"])
        return said


def copied(value: Any, before: Any = None) -> Any:
    """Return a nested value on the host: a copy of every tensor, and Python's numbers for numpy's.

    Others could not be read back: they are no data for `weights_only=True`. The memory of an
    earlier copy, `before`, is used again: first-touch page faults cost more than the copy.
    """
    leaves, structure = tree_flatten(value)
    olds = tree_leaves(before)[: len(leaves)] if before is not None else []
    copies = (_copy(leaf, old) for leaf, old in zip_longest(leaves, olds))
    return tree_unflatten(copies, structure)


def _copy(leaf: Any, old: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf.item() if isinstance(leaf, np.generic) else leaf
    if (kind := _kind(leaf)) is not None and kind == _kind(old):
        return old.copy_(leaf.detach())
    return leaf.detach().to("cpu", copy=True)


def _kind(value: Any) -> tuple[Any, ...] | None:
    """Return shape, strides and dtype of a plain tensor, or None for something else."""
    odd = not isinstance(value, Tensor) or value.layout is not torch.strided
    odd = odd or value.is_quantized or value.is_nested
    return None if odd else (value.shape, value.stride(), value.dtype)


def graphs_made() -> int:
    """Return the number of graphs that Dynamo has made in this process so far."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
