"""State of a training, taken apart for a checkpoint and put back: model, optimizer and the rest.

Large tensors are common to all ranks. Of the small rest, one part is common, and one is each rank's
own: random states, the position in the data, what error feedback has kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gallery_lib.checkpoint.manifest import Manifest, Unusable
from gallery_lib.checkpoint.plain_weights import is_plain
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
            large, common["optimizer"] = state_of(self.optimizer, model)
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

        model = plain(self.model)
        weights, extra = _weights(model)
        saved = _of_model(reading.shapes(folder)) | _kinds(common["model"])
        if reason := _difference(_kinds(weights) | _kinds(extra), saved, _loaded_by_itself(model)):
            raise Unusable(folder, f"is of another model: {reason}.")
        for name in ("optimizer", "scheduler", "scaler"):
            if (getattr(self, name) is None) != (name not in common):
                there = "no" if name not in common else f"the state of a{'n' * (name[0] == 'o')}"
                raise Unusable(
                    folder,
                    f"holds {there} {name}, and this training has "
                    f"{'one' if name not in common else 'none'}.",
                )
        if self.optimizer is not None and (
            reason := difference(self.optimizer, model, common["optimizer"])
        ):
            raise Unusable(folder, f"is of another optimizer: it {reason}.")
        if self.scaler is not None and bool(common["scaler"]) != bool(self.scaler.state_dict()):
            raise Unusable(
                folder, "is of a training with another precision: one of both scales gradients."
            )

    def load(self, folder: Path, manifest: Manifest, common: dict[str, Any]) -> list[str]:
        """Go on from a checkpoint that has been checked; return what to announce, line by line."""
        from gallery_lib.checkpoint import reading  # the import takes most of a second

        model = plain(self.model)
        shapes = reading.shapes(folder)
        weights, _ = _weights(model)
        present = _kinds(weights)
        others = {
            name: torch.empty(size, dtype=dtype)
            for name, (size, dtype, _) in _of_model(shapes).items()
            if present.get(name) != (size, dtype, torch.strided)
        }
        wanted = {
            MODEL + name: t for name, t in (weights | others).items() if MODEL + name in shapes
        }
        large: dict[str, Tensor] = {}
        if self.optimizer is not None:
            of_optimizer = {
                name.removeprefix(OPTIMIZER): shape
                for name, shape in shapes.items()
                if name.startswith(OPTIMIZER)
            }
            large = targets(self.optimizer, model, of_optimizer)
            wanted |= {OPTIMIZER + name: tensor for name, tensor in large.items()}
        reading.load_into(folder, wanted)
        _put_back(model, others | common["model"])
        if self.optimizer is not None:
            load(self.optimizer, model, large, common["optimizer"])
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


def _memory(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict([*parameters, *model.named_buffers(remove_duplicate=False)])


def _weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the plain parameters and buffers in a model's state dict, and what else it has."""
    state, memory = model.state_dict(), _memory(model)
    for name, value in state.items():
        if "DTensor" in type(value).__name__:
            raise InputError(
                f"the model's {name} is sharded (a DTensor). Save it with "
                "torch.distributed.checkpoint itself.",
                parameter="model",
            )
    plain_ones = {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor)
        and is_plain(value)
        and name in memory
        and value.is_set_to(memory[name])
    }
    return plain_ones, {name: value for name, value in state.items() if name not in plain_ones}


def _put_back(model: nn.Module, values: dict[str, Any]) -> None:
    """Bring to a model what could not be read into its memory.

    Tensors of the same size become its memory, since torch copies not all their kinds. The rest
    belongs to modules that save and load in their own way, so `load_state_dict` gets it.
    """
    memory = _memory(model)
    for name, value in list(values.items()):
        if isinstance(value, Tensor) and name in memory and memory[name].shape == value.shape:
            value = values.pop(name).to(memory[name].device)
            if value.layout in (torch.strided, torch.sparse_coo):
                memory[name].data = value
            else:  # of CSR and its kin the former sets nothing
                torch.utils.swap_tensors(memory[name], value)
    if values:
        state = model.state_dict()  # which also knows the versions of its modules
        state.update(values)
        model.load_state_dict(state, strict=False)


_Kind = tuple[Any, torch.dtype, Any]
"""Size, dtype and layout of a tensor."""


def _kinds(values: dict[str, Any]) -> dict[str, _Kind]:
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return {name: (value.shape, value.dtype, value.layout) for name, value in tensors.items()}


def _of_model(shapes: dict[str, tuple[Any, torch.dtype]]) -> dict[str, _Kind]:
    return {
        name.removeprefix(MODEL): (*shape, torch.strided)
        for name, shape in shapes.items()
        if name.startswith(MODEL)
    }


def _loaded_by_itself(model: nn.Module) -> set[str]:
    """Return the names of modules whose classes, none of torch.nn's, have a loading of their own.

    An observer of quantisation, for instance, has buffers of another size after its first batch.
    """
    return {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module)._load_from_state_dict is not nn.Module._load_from_state_dict
        and not type(module)._load_from_state_dict.__module__.startswith("torch.nn.")
    }


def _difference(
    weights: dict[str, _Kind], saved: dict[str, _Kind], loaded_by_itself: set[str]
) -> str:
    """Return how the tensors of a checkpoint differ from those here, or "" where they fit."""
    missing = [name for name in weights if name not in saved]
    extra = [name for name in saved if name not in weights]
    if missing or extra:
        name = (missing or extra)[0]
        whose = "lacks" if missing else "has"
        return f"it {whose} {name} ({len(missing)} names are missing in it, {len(extra)} more)"
    for name, kind in weights.items():
        if kind != saved[name] and name.rpartition(".")[0] not in loaded_by_itself:
            there, here = (
                f"{list(size)} in {dtype}" + f", {layout}" * (layout is not torch.strided)
                for size, dtype, layout in (saved[name], kind)
            )
            return f"its {name} is {there}, and here it is {here}"
    return ""


def unnamed(values: dict[str, Any]) -> str:
    """Return the first tensor that a safetensors file cannot hold, in words, or ""."""
    for name, value in values.items():
        if isinstance(value, Tensor) and not is_plain(value):
            return f"{name} ({value.dtype}, {value.layout})"
    return ""


def check_plain(small_parts: dict[str, Any]) -> None:
    """Raise InputError where small parts of a state could not be read back without pickle."""
    from gallery_lib.checkpoint import reading

    for name, value in small_parts.items():
        if reason := reading.unreadable(value):
            raise InputError(
                f"the state of the {name} cannot be saved: {reason}. Checkpoints hold tensors, "
                "numpy arrays and plain values.",
                parameter=name,
            )


# --------------------------------------------------------------------------------------------------
# States of an optimizer under the names of its parameters: one format for every implementation.
#
# Adam of torch, fused or not, and this package's forms of it have the same states. So a checkpoint
# of any of them is gone on with by the others. Which implementation takes the steps is the present
# optimizer's choice, not the checkpoint's.


IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Options of a group that choose among implementations of the same rule."""


def names_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the name of each parameter of each group; one outside the model has a number."""
    known = {id(p): name for name, p in model.named_parameters(remove_duplicate=False)}
    return [
        [known.get(id(p), f"group-{number}.{place}") for place, p in enumerate(group["params"])]
        for number, group in enumerate(optimizer.param_groups)
    ]


def state_of(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state: large plain tensors by `NAME/KEY`, and all the rest.

    Step counts and other scalars are part of the rest.
    """
    state = optimizer.state_dict()
    groups = names_of(optimizer, model)
    order = [name for names in groups for name in names]
    large: dict[str, Tensor] = {}
    rest: dict[Any, Any] = {}
    for number, values in state["state"].items():
        if not isinstance(number, int):  # of no parameter: the optimizer's own
            rest[number] = values
            continue
        name = order[number]
        large |= {f"{name}/{key}": value for key, value in values.items() if _is_large(key, value)}
        rest[name] = {key: value for key, value in values.items() if not _is_large(key, value)}
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in state["param_groups"]
    ]
    facts = {"kind": type(optimizer).__name__, "parameters": groups}
    return large, {**facts, "groups": options, "states": rest}


def _is_large(key: Any, value: Any) -> bool:
    named = isinstance(key, str) and "/" not in key
    return named and isinstance(value, Tensor) and value.dim() > 0 and is_plain(value)


def difference(optimizer: torch.optim.Optimizer, model: nn.Module, rest: dict[str, Any]) -> str:
    """Return how the optimizer differs from that of a checkpoint, or "" where it fits."""
    kind, groups = type(optimizer).__name__, names_of(optimizer, model)
    if kind != rest["kind"]:
        return f"is of {rest['kind']}, and this training has {kind}"
    if groups != rest["parameters"]:
        before, now = (sum(map(len, names)) for names in (rest["parameters"], groups))
        return (
            f"has {before} parameters in {len(rest['parameters'])} group(s), and this optimizer "
            f"{now} in {len(groups)}, or others"
        )
    return ""


def targets(
    optimizer: torch.optim.Optimizer, model: nn.Module, shapes: dict[str, tuple[Any, torch.dtype]]
) -> dict[str, Tensor]:
    """Return an empty tensor for each large state, laid out like its parameter.

    Args:
        optimizer: the present optimizer.
        model: the model that it trains.
        shapes: size and dtype by `NAME/KEY`.
    """
    parameters = {
        name: p
        for names, group in zip(names_of(optimizer, model), optimizer.param_groups, strict=True)
        for name, p in zip(names, group["params"], strict=True)
    }
    result = {}
    for key, (size, dtype) in shapes.items():
        parameter = parameters[key.rpartition("/")[0]]
        result[key] = (
            torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            if parameter.shape == size
            else torch.empty(size, dtype=dtype, device=parameter.device)
        )
    return result


def load(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    large: dict[str, Tensor],
    rest: dict[str, Any],
) -> None:
    """Load what `state_of` returned; the large tensors become the optimizer's own."""
    order = [name for names in names_of(optimizer, model) for name in names]
    numbers = {name: number for number, name in enumerate(order)}
    states: dict[Any, Any] = {
        numbers.get(name, name): copy.copy(values) for name, values in rest["states"].items()
    }
    for key, value in large.items():
        name, _, kind = key.rpartition("/")
        states[numbers[name]][kind] = value
    present = optimizer.state_dict()["param_groups"]
    groups = [
        {
            **saved,
            **{name: group[name] for name in IMPLEMENTATION if name in group},
            "params": group["params"],
        }
        for saved, group in zip(rest["groups"], present, strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
