"""Weights that a run starts from, of a file (`pretrained`) or a run (`init_from`), and leaves.

A tensor is taken where name and shape are those of the model. All others stay as they were drawn,
and the report names them: the head for another number of classes, say. Rank 0 reads the file and
the other ranks get its weights, so the file need not be on every host.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.checkpoint.folders import CHECKPOINTS, newest_first
from gallery_lib.comm import process_group
from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write

WEIGHTS_FILE = "weights.pt"
_OF_A_CHECKPOINT = "weights.safetensors"
# Names that wrappers put into the middle of keys: torch.compile, FSDP, activation checkpoints.
_WRAPPER = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Attributes in which DataParallel and trainers keep the model.
_PREFIXES = ("module.", "model.", "net.", "network.")
_CODE = re.compile(r"(TorchScript|Unsupported (?:global|class|operand))", re.IGNORECASE)
_SHOWN = 4


@dataclass(frozen=True)
class Fit:
    """What of a file fitted a model of `tensors` tensors; names are the model's own.

    `other_shape` says for a name how the file's tensor differs.
    """

    file: str
    tensors: int
    fitted: int
    other_shape: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines for people."""
        lines = [f"{self.file}: {self.fitted} of {self.tensors} tensors of the model fitted"]
        if self.other_shape:
            shapes = [f"{name} ({what})" for name, what in self.other_shape.items()]
            lines.append(f"of another shape in the file, so left as drawn: {_some(shapes)}")
        if self.missing:
            lines.append(f"not in the file, so left as drawn: {_some(self.missing)}")
        if self.unexpected:
            lines.append(f"in the file and not in the model: {_some(self.unexpected)}")
        return lines


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", … ({len(listed)} in all)" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def source(config: TrainConfig) -> tuple[Path, str] | None:
    """Return the file of weights that a run starts from and the option that names it, or None.

    Raises:
        InputError: for a run without weights.
    """
    if config.pretrained is not None:
        return Path(config.pretrained).expanduser(), "pretrained"
    if config.init_from is not None:
        return _of_run(Path(config.init_from).expanduser()), "init_from"
    return None


def _of_run(run_dir: Path) -> Path:
    """Return the file of the weights of a run: those of its end, or of its newest checkpoint."""
    checkpoints = newest_first(run_dir / CHECKPOINTS)
    for folder, name in (
        (run_dir, WEIGHTS_FILE),
        *((one, _OF_A_CHECKPOINT) for one in checkpoints),
    ):
        if (weights := folder / name).exists():
            return weights
    raise InputError(
        f"init_from={run_dir} is no folder of a run with weights: it has neither {WEIGHTS_FILE}, "
        f"which save_weights writes, nor {CHECKPOINTS}/step-*/{_OF_A_CHECKPOINT}. A file is given "
        "as pretrained.",
        parameter="init_from",
    )


def check_file(config: TrainConfig) -> None:
    """Raise InputError where the weights that a run starts from cannot be read."""
    if (named := source(config)) is not None:
        read_weights(*named)


def start_from(config: TrainConfig, model: nn.Module) -> Fit | None:
    """Load the weights that the options name into `model`, the same on every rank.

    Collective. None where the options name none.

    Raises:
        InputError: on all ranks, where rank 0 cannot read the file, or nothing in it fits.
    """
    if config.pretrained is None and config.init_from is None:
        return None
    outcome: Fit | InputError | None = None
    if process_group.rank() == 0:
        try:
            named = source(config)
            assert named is not None
            outcome = load(model, read_weights(*named), *named)
        except InputError as error:
            outcome = error
    outcome = process_group.from_rank_0(outcome)
    if isinstance(outcome, InputError):
        raise outcome
    for value in _tensors(model).values():
        process_group.copy_from_rank_0(value)
    return outcome


@torch.no_grad()
def load(model: nn.Module, tensors: Mapping[str, Tensor], file: Path, parameter: str) -> Fit:
    """Copy what fits of `tensors` into `model`, and return what did.

    Raises:
        InputError: where nothing fits; the model is unchanged then.
    """
    own = _tensors(model)
    given = _renamed(tensors, own)
    fitting = {name for name, value in own.items() if name in given and _fits(value, given[name])}
    if not fitting:
        raise InputError(
            f"{parameter}: none of the {len(given)} tensors in {file} fits the model: it has "
            f"{_some(map(_with_shape, tensors.items()))}, and the model "
            f"{_some(map(_with_shape, own.items()))}. Give weights of the same architecture.",
            parameter=parameter,
        )
    for name in fitting:
        own[name].copy_(given[name])
    shared = {_place(own[name]) for name in fitting}
    other_shape = {
        name: f"{_shape(given[name])} in the file, {_shape(value)} in the model"
        for name, value in own.items()
        if name in given and name not in fitting
    }
    # A tensor that several names share may stand under one of them alone.
    missing = [
        name for name, value in own.items() if name not in given and _place(value) not in shared
    ]
    return Fit(
        file=str(file),
        tensors=len(own),
        fitted=len(own) - len(other_shape) - len(missing),
        other_shape=other_shape,
        missing=missing,
        unexpected=[name for name in given if name not in own],
    )


def save_weights(model: nn.Module, run_dir: Path) -> None:
    """Write the plain model's state dict, on the CPU, to `weights.pt`.

    `torch.load(…, weights_only=True)` reads it.
    """
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    with atomic_write(run_dir / WEIGHTS_FILE, "wb") as file:
        torch.save(state, file)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the model's state dict, which are the model's own storage."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _renamed(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` without what wrappers add to keys, as far as more of them then match."""
    names = {_WRAPPER.sub("", name): value for name, value in tensors.items()}
    for _ in range(_DEPTH):
        others = [
            {name.removeprefix(prefix): value for name, value in names.items()}
            for prefix in _PREFIXES
        ]
        # A file of the trunk alone lacks the first part of the model's names.
        others += [
            {f"{first}.{name}": value for name, value in names.items()}
            for first in dict.fromkeys(name.partition(".")[0] for name in own)
        ]
        best = max(others, key=lambda other: len(other.keys() & own.keys()))
        if len(best) < len(names) or len(best.keys() & own.keys()) <= len(
            names.keys() & own.keys()
        ):
            break
        names = best
    return names


def _fits(own: Tensor, given: Tensor) -> bool:
    """Return whether `given` can be copied to `own`; another precision is converted."""
    return (
        own.shape == given.shape
        and own.is_floating_point() == given.is_floating_point()
        and own.is_complex() == given.is_complex()
        and given.layout is torch.strided
        and not given.is_quantized
    )


def _place(value: Tensor) -> tuple[int, tuple[int, ...], torch.Size]:
    return value.data_ptr(), value.stride(), value.shape


def _shape(value: Tensor) -> str:
    shape = "×".join(map(str, value.shape)) or "a number"
    return shape if value.is_floating_point() else f"{shape} {str(value.dtype).partition('.')[2]}"


def _with_shape(item: tuple[str, Tensor]) -> str:
    return f"{item[0]} ({_shape(item[1])})"


# --------------------------------------------------------------------------------------------------
# Tensors by key out of a file of weights: safetensors, or what `torch.save` wrote of a state dict.
#
# The format is told from the content. Nothing in a file is executed: `torch.load` reads tensors
# and plain containers alone. What trainers wrap around a state dict (`{"model": …, "epoch": …}`)
# is unwrapped.


_WRAPPERS = ("state_dict", "model_state_dict", "model", "weights", "net", "network", "module")
"""Names under which trainers keep a model's state dict, in the order of precedence."""
_DEPTH = 3  # of wrappers in wrappers


def read_weights(path: Path, parameter: str) -> dict[str, Tensor]:
    """Return the tensors of the file `path` by key, on the CPU, out of their wrappers.

    Args:
        path: the file.
        parameter: the option that named it, for the message.

    Raises:
        InputError: for a file that is missing, damaged, of another format, without tensors, or that
            needs code to be executed.
    """
    from safetensors.torch import load_file

    form = "Give a file of weights: safetensors, or torch.save(model.state_dict(), FILE)."
    try:
        with path.open("rb") as file:
            start = file.read(9)
        if start[8:] == b"{":  # after eight bytes of length, safetensors has JSON
            content: Any = load_file(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # TorchScript is refused with an error
                # Mapped: pages that are not needed are not read. Before torch 1.6 none could be.
                content = torch.load(
                    path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
                )
    except OSError as error:
        instead = " A run's folder is given as init_from." if path.is_dir() else ""
        raise InputError(
            f"{parameter}: cannot read {path}: {error.strerror}. {form}{instead}",
            parameter=parameter,
        ) from None
    except Exception as error:  # of unpickling, of the archive, of safetensors
        text = " ".join(str(error).split())
        if code := re.search(r"GLOBAL (\S+)", text) or _CODE.search(text):
            raise InputError(
                f"{parameter}: {path} holds more than tensors ({code[1].rstrip('.,')}), and "
                "loading it would execute its code. Where you trust it, load it and save its "
                f"tensors. {form}",
                parameter=parameter,
            ) from None
        reason = text.partition(". ")[0] or type(error).__name__
        raise InputError(
            f"{parameter}: {path} is damaged, or no file of weights ({reason}). {form}",
            parameter=parameter,
        ) from None
    tensors = _unwrapped(content)
    if not tensors:
        names = f": {', '.join(map(repr, list(content)[:5]))}" if isinstance(content, dict) else ""
        raise InputError(
            f"{parameter}: {path} holds a {type(content).__name__}{names}, and no tensors by name. "
            f"{form}",
            parameter=parameter,
        )
    return tensors


def _unwrapped(content: Any, depth: int = _DEPTH) -> dict[str, Tensor]:
    """Return the tensors by key in `content`, or in the first wrapper that has some."""
    if not isinstance(content, Mapping):
        return {}
    for name in _WRAPPERS if depth else ():
        if tensors := _unwrapped(content.get(name), depth - 1):
            return tensors
    return {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }
