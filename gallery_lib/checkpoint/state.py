"""State of a training, taken apart for a checkpoint and put back: model, optimizers and the rest.

Large tensors are common to all ranks. Of the small rest, one part is common, and one is each rank's
own: random states, the position in the data, what error feedback has kept.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.folders import AUTO, Choice, Manifest, Unusable
from gallery_lib.checkpoint.values import is_plain, read_plain, read_tensors
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import comm_state_dict, load_comm_state_dict
from gallery_lib.comm.ddp import plain_module
from gallery_lib.console.exit_code import refusal
from gallery_lib.data.loading import random_states
from gallery_lib.errors import InputError

WEIGHTS_FILE = "weights.safetensors"
COMMON_FILE = "training.pt"


def optimizer_file(rank: int) -> str:
    """Return the name of the file with the optimizer states that a rank has written."""
    return f"optimizer-{rank:05d}.safetensors"


def rank_file(rank: int) -> str:
    """Return the name of the file with a rank's own part of a checkpoint."""
    return f"rank-{rank:05d}.pt"


@dataclass
class TrainingState:
    """State of a training at the end of a step. The tensors are the training's own, not copies."""

    weights: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    common: dict[str, Any]
    of_rank: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """Files to copy into the checkpoint, by name there, with their present length."""


@dataclass(frozen=True)
class Saved:
    """State in a whole checkpoint. Its tensors may be pages of the files."""

    path: Path
    manifest: Manifest
    refused: list[str]
    weights: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    common: dict[str, Any]

    @classmethod
    def of(cls, choice: Choice) -> Saved:
        """Return the state in the checkpoint that was chosen."""
        states: dict[str, Tensor] = {}
        for rank in range(choice.manifest.world_size):
            states |= read_tensors(choice.path / optimizer_file(rank))
        weights = read_tensors(choice.path / WEIGHTS_FILE)
        common = read_plain(choice.path / COMMON_FILE)
        return cls(choice.path, choice.manifest, choice.refused, weights, states, common)

    def of_rank(self) -> dict[str, Any]:
        """Return this rank's own part; ranks beyond its number share the others'."""
        rank = process_group.rank() % self.manifest.world_size
        return read_plain(self.path / rank_file(rank))


def choose(resume: str, own_folder: Path | None) -> Saved | None:
    """Return the checkpoint to go on from, the same on every rank. A collective call.

    Args:
        resume: `auto`, or a path.
        own_folder: the folder of this training's checkpoints, for `auto`.

    Raises:
        InputError: on every rank where there is none to use.
    """
    answer: Choice | InputError | None = None
    if process_group.rank() == 0:
        try:
            if resume != AUTO:
                answer = folders.named(Path(resume).expanduser())
            elif own_folder is not None:
                answer = folders.newest_whole(own_folder, set_aside=True)
        except InputError as error:
            answer = InputError(str(error), parameter="resume")
        except OSError as error:
            text = f"resume={resume} cannot be used. {refusal(error)}."
            answer = InputError(text, parameter="resume")
    answer = process_group.from_rank_0(answer)
    if isinstance(answer, InputError):
        raise answer
    return None if answer is None else Saved.of(answer)


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
    optimizers: Sequence[torch.optim.Optimizer] = ()
    schedulers: Sequence[Any] = ()
    scaler: Any = None
    loader: Any = None
    """Anything with `state_dict` and `load_state_dict`, or None."""

    def state(self, **more: Any) -> TrainingState:
        """Return the state of all parts; `more` becomes part of what is common."""
        model = plain(self.model)
        state = _state_dict(model)
        weights = {name: value for name, value in state.items() if is_plain(value)}
        extra = {name: value for name, value in state.items() if name not in weights}
        large: dict[str, Tensor] = {}
        rest = []
        for number, optimizer in enumerate(self.optimizers):
            tensors, others = state_of(optimizer, model)
            large |= {f"{number}/{name}": tensor for name, tensor in tensors.items()}
            rest.append(others)
        common = {
            "model": extra,
            "optimizer": rest,
            "scheduler": [scheduler.state_dict() for scheduler in self.schedulers],
            "scaler": {} if self.scaler is None else self.scaler.state_dict(),
            **more,
        }
        of_rank: dict[str, Any] = {
            "random": random_states.captured(),
            "loader": None if self.loader is None else self.loader.state_dict(),
            "communication": comm_state_dict(self.model),
        }
        return TrainingState(weights, large, common, of_rank)

    def check(self, saved: Saved) -> None:
        """Raise Unusable where a checkpoint does not fit these parts; nothing is changed."""
        model, path = plain(self.model), saved.path
        if reason := _difference(model, saved.weights | saved.common["model"]):
            raise Unusable(path, f"is of another model: {reason}.")
        for name, parts in (("optimizer", self.optimizers), ("scheduler", self.schedulers)):
            if (there := len(saved.common[name])) != (here := len(parts)):
                raise Unusable(path, f"holds {there} {name}(s), and this training has {here}.")
        for optimizer, rest in zip(self.optimizers, saved.common["optimizer"], strict=True):
            if reason := difference(optimizer, model, rest):
                raise Unusable(path, f"is of another optimizer: it {reason}.")
        scales = self.scaler is not None and bool(self.scaler.state_dict())
        if scales != bool(saved.common["scaler"]):
            raise Unusable(
                path, "is of a training with another precision: one of both scales gradients."
            )

    def load(self, saved: Saved) -> list[str]:
        """Go on from a checkpoint that has been checked; return what to announce, line by line."""
        model, common = plain(self.model), saved.common
        _load_model(model, saved.weights | common["model"])
        for number, optimizer in enumerate(self.optimizers):
            mark = f"{number}/"
            large = {
                name.removeprefix(mark): tensor
                for name, tensor in saved.optimizers.items()
                if name.startswith(mark)
            }
            load(optimizer, model, large, common["optimizer"][number])
        for scheduler, state in zip(self.schedulers, common["scheduler"], strict=True):
            scheduler.load_state_dict(state)
        if common["scaler"]:
            self.scaler.load_state_dict(common["scaler"])
        return self._load_of_rank(saved)

    def _load_of_rank(self, saved: Saved) -> list[str]:
        said: list[str] = []
        of_rank = saved.of_rank()
        if self.loader is not None and of_rank["loader"] is not None:
            self.loader.load_state_dict(of_rank["loader"])
        kept = of_rank["communication"]
        if kept and saved.manifest.world_size == process_group.world_size():
            device = process_group.device()
            load_comm_state_dict(
                self.model,
                tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, kept),
            )
        elif kept:
            said.append(
                f"what error feedback has kept of gradients belongs to {saved.manifest.world_size} "
                "processes, and is left out"
            )
        random_states.restore(of_rank["random"])
        return said


# --------------------------------------------------------------------------------------------------
# The model.


def _state_dict(model: nn.Module) -> dict[str, Any]:
    state = model.state_dict()
    for name, value in state.items():
        if "DTensor" in type(value).__name__:
            raise InputError(
                f"the model's {name} is sharded (a DTensor). Save it with "
                "torch.distributed.checkpoint itself.",
                parameter="model",
            )
    return state


def _load_model(model: nn.Module, values: dict[str, Any]) -> None:
    """Load a state dict that has been checked.

    Plain tensors are copied to the model's memory. Others of the same size become its memory, since
    torch copies not all their kinds. The rest belongs to modules that save and load in their own
    way, so `load_state_dict` gets it.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    memory = dict([*parameters, *model.named_buffers(remove_duplicate=False)])
    rest: dict[str, Any] = {}
    with torch.no_grad():
        for name, value in values.items():
            own = memory.get(name)
            if isinstance(value, Tensor) and own is not None and own.shape == value.shape:
                if is_plain(own) and is_plain(value):
                    own.copy_(value)
                    continue
                value = value.to(own.device, copy=True)
                if value.layout in (torch.strided, torch.sparse_coo):
                    own.data = value
                else:  # of CSR and its kin the former sets nothing
                    torch.utils.swap_tensors(own, value)
            else:
                rest[name] = value.clone() if isinstance(value, Tensor) else value
    if rest:
        state = model.state_dict()  # which also knows the versions of its modules
        state.update(rest)
        model.load_state_dict(state, strict=False)


def _difference(model: nn.Module, saved: dict[str, Any]) -> str:
    """Return how the tensors of a checkpoint differ from a model's, or "" where they fit."""
    here, there = _kinds(model.state_dict()), _kinds(saved)
    missing = [name for name in here if name not in there]
    extra = [name for name in there if name not in here]
    if missing or extra:
        name = (missing or extra)[0]
        whose = "lacks" if missing else "has"
        return f"it {whose} {name} ({len(missing)} names are missing in it, {len(extra)} more)"
    # An observer of quantisation, say, has buffers of another size after its first batch.
    load_themselves = {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if not type(module)._load_from_state_dict.__module__.startswith("torch.nn.")
    }
    for name, kind in here.items():
        if kind != there[name] and name.rpartition(".")[0] not in load_themselves:
            saved_kind, own_kind = (
                f"{list(size)} in {dtype}" + f", {layout}" * (layout is not torch.strided)
                for size, dtype, layout in (there[name], kind)
            )
            return f"its {name} is {saved_kind}, and here it is {own_kind}"
    return ""


def _kinds(values: dict[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype, torch.layout]]:
    """Return size, dtype and layout of each tensor."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return {name: (value.shape, value.dtype, value.layout) for name, value in tensors.items()}


# --------------------------------------------------------------------------------------------------
# States of an optimizer under the names of its parameters: one format for every implementation.
#
# Adam of torch, fused or not, and this package's forms of it have the same states. So a checkpoint
# of any of them is gone on with by the others. Which implementation takes the steps is the present
# optimizer's choice, not the checkpoint's.


_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Options of a group that choose among implementations of the same rule."""


def _names_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
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
    groups = _names_of(optimizer, model)
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
    return isinstance(key, str) and "/" not in key and is_plain(value) and value.dim() > 0


def difference(optimizer: torch.optim.Optimizer, model: nn.Module, rest: dict[str, Any]) -> str:
    """Return how the optimizer differs from that of a checkpoint, or "" where it fits."""
    kind, groups = type(optimizer).__name__, _names_of(optimizer, model)
    if kind != rest["kind"]:
        return f"is of {rest['kind']}, and this training has {kind}"
    if groups != rest["parameters"]:
        before, now = (sum(map(len, names)) for names in (rest["parameters"], groups))
        return (
            f"has {before} parameters in {len(rest['parameters'])} group(s), and this optimizer "
            f"{now} in {len(groups)}, or others"
        )
    return ""


def load(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    large: dict[str, Tensor],
    rest: dict[str, Any],
) -> None:
    """Load copies of what `state_of` returned, laid out like their parameters."""
    order = [name for names in _names_of(optimizer, model) for name in names]
    numbers = {name: number for number, name in enumerate(order)}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    states: dict[Any, Any] = {
        numbers.get(name, name): copy.copy(values) for name, values in rest["states"].items()
    }
    for key, value in large.items():
        name, _, kind = key.rpartition("/")
        parameter = parameters[numbers[name]]
        if parameter.shape == value.shape:
            own = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
        else:
            own = value.to(parameter.device, copy=True)
        states[numbers[name]][kind] = own
    present = optimizer.state_dict()["param_groups"]
    groups = [
        {
            **saved,
            **{name: group[name] for name in _IMPLEMENTATION if name in group},
            "params": group["params"],
        }
        for saved, group in zip(rest["groups"], present, strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
