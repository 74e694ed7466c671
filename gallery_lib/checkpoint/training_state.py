"""State of a training, taken apart for a checkpoint and put back: model, optimizer and the rest.

Large tensors are common to all ranks. Of the small rest, one part is common, and one is each rank's
own: random states, the position in the data, what error feedback has kept.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gallery_lib.checkpoint import optimizers
from gallery_lib.checkpoint.manifest import Manifest, Unusable
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import comm_state_dict, load_comm_state_dict
from gallery_lib.comm.ddp import plain_module
from gallery_lib.data.loading import random_states
from gallery_lib.errors import InputError

MODEL = "model/"
OPTIMIZER = "optimizer/"


@dataclass
class TrainingState:
    """State of a training at the end of a step."""

    tensors: dict[str, Tensor]
    common: dict[str, Any]
    of_rank: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """Files to copy into the checkpoint, by name there, with their present length."""


def plain(model: nn.Module) -> nn.Module:
    """Return the user's own module, inside what distributes and compiles it."""
    inner = plain_module(model)
    # By name, since importing the class takes a second.
    if type(inner).__name__ == "OptimizedModule":
        inner = inner._orig_mod  # type: ignore[assignment]
    return inner


@dataclass
class Parts:
    """Objects of a training whose state a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    scaler: Any = None
    loader: Any = None
    """Anything with `state_dict` and `load_state_dict`, or None."""

    def state(self, **more: Any) -> TrainingState:
        """Return the state of all parts; `more` becomes part of what is common.

        The tensors are the training's own, not copies.
        """
        model = plain(self.model)
        weights, extra = _weights(model)
        tensors = {MODEL + name: tensor for name, tensor in weights.items()}
        common: dict[str, Any] = {"model": extra, **more}
        if self.optimizer is not None:
            large, common["optimizer"] = optimizers.state_of(self.optimizer, model)
            tensors |= {OPTIMIZER + name: tensor for name, tensor in large.items()}
        for name in ("scheduler", "scaler"):
            part = getattr(self, name)
            if part is not None:
                common[name] = part.state_dict()
        of_rank: dict[str, Any] = {
            "random": random_states.captured(),
            "loader": None if self.loader is None else self.loader.state_dict(),
            "communication": comm_state_dict(self.model),
        }
        return TrainingState(tensors, common, of_rank)

    def check(self, folder: Path, common: dict[str, Any]) -> None:
        """Raise Unusable where a checkpoint does not fit these parts; nothing is changed."""
        from gallery_lib.checkpoint import reading  # the import takes most of a second

        weights, _ = _weights(plain(self.model))
        saved = {
            name.removeprefix(MODEL): shape
            for name, shape in reading.shapes(folder).items()
            if name.startswith(MODEL)
        }
        if reason := _difference(weights, saved):
            raise Unusable(folder, f"is of another model: {reason}.")
        for name in ("optimizer", "scheduler", "scaler"):
            if (getattr(self, name) is None) != (name not in common):
                there = "no" if name not in common else f"the state of a{'n' * (name[0] == 'o')}"
                raise Unusable(
                    folder,
                    f"holds {there} {name}, and this training has "
                    f"{'one' if name not in common else 'none'}.",
                )
        if self.optimizer is not None:
            model = plain(self.model)
            if reason := optimizers.difference(self.optimizer, model, common["optimizer"]):
                raise Unusable(folder, f"is of another optimizer: it {reason}.")
        if self.scaler is not None and bool(common["scaler"]) != bool(self.scaler.state_dict()):
            raise Unusable(
                folder, "is of a training with another precision: one of both scales gradients."
            )

    def load(self, folder: Path, manifest: Manifest, common: dict[str, Any]) -> list[str]:
        """Go on from a checkpoint that has been checked; return what to announce, line by line."""
        from gallery_lib.checkpoint import reading  # the import takes most of a second

        model = plain(self.model)
        weights, _ = _weights(model)
        wanted = {MODEL + name: tensor for name, tensor in weights.items()}
        large: dict[str, Tensor] = {}
        if self.optimizer is not None:
            shapes = {
                name.removeprefix(OPTIMIZER): shape
                for name, shape in reading.shapes(folder).items()
                if name.startswith(OPTIMIZER)
            }
            large = optimizers.targets(self.optimizer, model, shapes)
            wanted |= {OPTIMIZER + name: tensor for name, tensor in large.items()}
        reading.load_into(folder, wanted)
        if common["model"]:  # what is no tensor, of modules that keep such state
            model.load_state_dict(common["model"], strict=False)
        if self.optimizer is not None:
            optimizers.load(self.optimizer, model, large, common["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(common["scheduler"])
        if self.scaler is not None and common["scaler"]:
            self.scaler.load_state_dict(common["scaler"])
        return self._load_of_rank(folder, manifest)

    def _load_of_rank(self, folder: Path, manifest: Manifest) -> list[str]:
        said: list[str] = []
        of_rank = rank_state(folder, manifest)
        same = manifest.world_size == process_group.world_size()
        if self.loader is not None and of_rank["loader"] is not None:
            self.loader.load_state_dict(of_rank["loader"])
        if of_rank["communication"] and same:
            device = process_group.device()
            load_comm_state_dict(
                self.model,
                tree_map(
                    lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf,
                    of_rank["communication"],
                ),
            )
        elif of_rank["communication"]:
            said.append(
                f"what error feedback has kept of gradients belongs to {manifest.world_size} "
                "processes, and is left out"
            )
        random_states.restore(of_rank["random"])
        return said


def rank_state(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return this rank's own part of a checkpoint; ranks beyond its number share the others'."""
    from gallery_lib.checkpoint import reading

    rank = process_group.rank() % manifest.world_size
    return reading.plain_state(folder / f"rank-{rank:05d}.pt")


def _weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a model's state dict, and what else it has."""
    state = model.state_dict()
    for name, value in state.items():
        if "DTensor" in type(value).__name__:
            raise InputError(
                f"the model's {name} is sharded (a DTensor). Save it with "
                "torch.distributed.checkpoint itself.",
                parameter="model",
            )
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def _difference(weights: dict[str, Tensor], saved: dict[str, tuple[Any, torch.dtype]]) -> str:
    missing = [name for name in weights if name not in saved]
    extra = [name for name in saved if name not in weights]
    if missing or extra:
        name = (missing or extra)[0]
        whose = "lacks" if missing else "has"
        return f"it {whose} {name} ({len(missing)} names are missing in it, {len(extra)} more)"
    for name, tensor in weights.items():
        size, dtype = saved[name]
        if tensor.shape != size or tensor.dtype != dtype:
            return (
                f"its {name} is {list(size)} in {dtype}, and here it is {list(tensor.shape)} in "
                f"{tensor.dtype}"
            )
    return ""


def check_plain(state: TrainingState) -> None:
    """Raise InputError where the small parts of a state could not be read back without pickle."""
    for name, value in {**state.common, **state.of_rank}.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"the state of the {name} cannot be saved: it holds more than tensors and plain "
                f"values ({reason}).",
                parameter=name,
            ) from None
