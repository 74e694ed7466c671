"""State of a training, taken apart for a checkpoint and put back: model, optimizers and the rest.

Large tensors are common to all ranks. Of the small rest, one part is common, and one is each rank's
own: random states, the position in the data, what error feedback has kept. Tensors are safetensors;
all else is what `torch.save` writes. The files are data: they are read with `weights_only=True`, so
nothing in them is executed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

from gallery_lib.checkpoint import folders
from gallery_lib.checkpoint.folders import AUTO, Choice, Manifest, Unusable
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import comm_state_dict, load_comm_state_dict
from gallery_lib.comm.ddp import plain_module
from gallery_lib.console.exit_code import refusal
from gallery_lib.data.loading import random_states
from gallery_lib.errors import InputError

WEIGHTS_FILE = "weights.safetensors"
COMMON_FILE = "training.pt"
OPTIMIZER_FILE = "optimizer-{:05d}.safetensors"
"""File with the optimizer states that a rank has written."""
RANK_FILE = "rank-{:05d}.pt"
"""File with a rank's own part of a checkpoint."""


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

    def of_rank(self) -> dict[str, Any]:
        """Return this rank's own part; ranks beyond its number share the others'."""
        rank = process_group.rank() % self.manifest.world_size
        return read_plain(self.path / RANK_FILE.format(rank))


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
        except (InputError, OSError) as error:
            text = error if isinstance(error, InputError) else refusal(error)
            answer = InputError(str(text), parameter="resume")
    answer = process_group.from_rank_0(answer)
    if isinstance(answer, InputError):
        raise answer
    if answer is None:
        return None
    states: dict[str, Tensor] = {}
    for rank in range(answer.manifest.world_size):
        states |= _read_tensors(answer.path / OPTIMIZER_FILE.format(rank))
    weights = _read_tensors(answer.path / WEIGHTS_FILE)
    common = read_plain(answer.path / COMMON_FILE)
    return Saved(answer.path, answer.manifest, answer.refused, weights, states, common)


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

    def state(self, **more: Any) -> TrainingState:
        """Return the state of all parts; `more` becomes part of what is common."""
        model = self.plain()
        state = model.state_dict()
        weights = {name: value for name, value in state.items() if is_plain(value)}
        large: dict[str, Tensor] = {}
        rest = []
        for number, optimizer in enumerate(self.optimizers):
            tensors, others = state_of(optimizer, model)
            large |= {f"{number}/{name}": tensor for name, tensor in tensors.items()}
            rest.append(others)
        common = {
            "model": {name: value for name, value in state.items() if name not in weights},
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
        model, path = self.plain(), saved.path
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
        model, common = self.plain(), saved.common
        model.load_state_dict(saved.weights | common["model"])
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
        said, of_rank = [], saved.of_rank()
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


def _difference(model: nn.Module, saved: dict[str, Any]) -> str:
    """Return how the tensors of a checkpoint differ from a model's, or "" where they fit."""

    def kinds(values: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: f"{list(value.shape)} in {value.dtype}, {value.layout}"
            for name, value in values.items()
            if isinstance(value, Tensor)
        }

    here, there = kinds(model.state_dict()), kinds(saved)
    if here.keys() != there.keys():
        missing, extra = here.keys() - there.keys(), there.keys() - here.keys()
        name, whose = min(missing or extra), "lacks" if missing else "has"
        return f"it {whose} {name} ({len(missing)} names are missing in it, {len(extra)} more)"
    # An observer of quantisation, say, has buffers of another size after its first batch.
    load_themselves = {
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if not type(module)._load_from_state_dict.__module__.startswith("torch.nn.")
    }
    for name, kind in here.items():
        if kind != there[name] and name.rpartition(".")[0] not in load_themselves:
            return f"its {name} is {there[name]}, and here it is {kind}"
    return ""


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
        own: dict[Any, Any] = rest.setdefault(order[number], {})
        for key, value in values.items():
            if isinstance(key, str) and "/" not in key and is_plain(value) and value.dim() > 0:
                large[f"{order[number]}/{key}"] = value
            else:
                own[key] = value
    options = [
        {name: value for name, value in group.items() if name != "params"}
        for group in state["param_groups"]
    ]
    facts = {"kind": type(optimizer).__name__, "parameters": groups}
    return large, {**facts, "groups": options, "states": rest}


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
    groups = [
        {
            **saved,
            **{name: group[name] for name in _IMPLEMENTATION if name in group},
            "params": group["params"],
        }
        for saved, group in zip(rest["groups"], optimizer.state_dict()["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


# --------------------------------------------------------------------------------------------------
# Values in files.


@functools.cache
def _held_by_safetensors(dtype: torch.dtype) -> bool:
    try:
        file = safetensors.torch.save({"": torch.empty(1, dtype=dtype)})
        return safetensors.torch.load(file)[""].shape == (1,)
    except Exception:  # each version of torch and safetensors refuses in its own way
        return False


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor with memory of its own and a dtype of safetensors.

    Sparse, quantised, nested and expanded tensors are not, and neither are subclasses that wrap
    other tensors.
    """
    return isinstance(value, Tensor) and not (
        is_lazy(value)
        or is_traceable_wrapper_subclass(value)
        or value.layout is not torch.strided
        or value.is_nested
        or value.is_meta
        or value.is_quantized
        or not _held_by_safetensors(value.dtype)
        or any(not step and n > 1 for n, step in zip(value.shape, value.stride(), strict=True))
    )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    with _damage_named(path.parent):
        return safetensors.torch.load_file(path)


def _numpys() -> list[Any]:
    """Return what pickles of numpy's numbers and arrays name, in numpy 1 and 2."""
    makers: list[Any] = [value.__reduce__()[0] for value in (np.float64(0), np.empty(0))]
    kinds = [np.ndarray, np.dtype, *(getattr(np.dtypes, name) for name in np.dtypes.__all__)]
    return [
        *((kind, f"{kind.__module__}.{kind.__name__}") for kind in kinds),
        *(
            (f, f"numpy.{core}.multiarray.{f.__name__}")
            for f in makers
            for core in ("core", "_core")
        ),
        (bytes, "builtins.bytes"),  # of an array without elements
    ]


_NUMPYS = _numpys()


def _loaded(file: Path | io.BytesIO) -> Any:
    with torch.serialization.safe_globals(_NUMPYS):
        return torch.load(file, map_location="cpu", weights_only=True)


def read_plain(path: Path) -> dict[str, Any]:
    """Return the values of a file of `write_plain`.

    Raises:
        Unusable: the file is damaged; the message names its checkpoint.
    """
    with _damage_named(path.parent):
        return _loaded(path)


def write_plain(path: Path, values: dict[str, Any]) -> None:
    """Write values to a new file.

    Raises:
        InputError: one of them could not be read back.
        OSError: the disk is full, or fails.
    """
    try:
        content = _serialized(values)
    except Exception:
        check_plain(values)
        raise
    path.write_bytes(content)
    folders.synchronize(path)


def check_plain(values: Mapping[str, Any]) -> None:
    """Raise InputError, with the name of the value, where one could not be read back."""
    for name, value in values.items():
        try:
            _serialized(copied(value))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            called = re.search(r"GLOBAL (\S+)", text)
            reason = f"reading it would execute {called[1]}" if called else text[:150]
            raise InputError(
                f"the state of the {name} cannot be saved: {reason}. Checkpoints hold tensors, "
                "numpy arrays and plain values.",
                parameter=name,
            ) from None


def copied(value: Any) -> Any:
    """Return a nested value with every tensor copied to the host."""
    return tree_map(
        lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, value
    )


def _serialized(value: Any) -> bytes:
    """Return a value as `torch.save` writes it, once it has been read back."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    _loaded(file)
    return file.getvalue()


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # of unpickling, of the archive, of safetensors
        text = " ".join(str(error).split())[:200]
        raise Unusable(folder, f"cannot be read: {text}.", damaged=True) from error
