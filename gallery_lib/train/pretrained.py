"""Weights that a run starts from, of a file (`pretrained`) or a run (`init_from`), and leaves.

A tensor is taken where name and shape are those of the model. All others stay as they were drawn,
and the report names them: the head for another number of classes, say. Rank 0 reads the file and
the other ranks get its weights, so the file need not be on every host.
"""

from __future__ import annotations

import pickle
import re
import warnings
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
    if not run_dir.is_dir():
        what = "is a file; that is pretrained" if run_dir.exists() else "does not exist"
        raise InputError(
            f"init_from={run_dir} {what}. Give the folder of an earlier run.",
            parameter="init_from",
        )
    if (weights := run_dir / WEIGHTS_FILE).exists():
        return weights
    for checkpoint in newest_first(run_dir / CHECKPOINTS):
        if (weights := checkpoint / _OF_A_CHECKPOINT).exists():
            return weights
    raise InputError(
        f"init_from={run_dir} holds no weights: it has neither {WEIGHTS_FILE}, which save_weights "
        f"writes, nor {CHECKPOINTS}/step-*/{_OF_A_CHECKPOINT}. Give the folder of a run with "
        "weights.",
        parameter="init_from",
    )


def check(config: TrainConfig) -> None:
    """Raise InputError for options that name two sources of weights."""
    if config.pretrained is not None and config.init_from is not None:
        raise InputError(
            "pretrained and init_from both name weights to start from. Give one of them.",
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
    matches = _matches(names, own)
    improved = True
    while improved:
        improved = False
        for other in _other_names(names, own):
            if len(other) == len(names) and _matches(other, own) > matches:
                names, matches, improved = other, _matches(other, own), True
                break
    return names


def _other_names(
    names: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> Iterable[dict[str, Tensor]]:
    """Yield `names` as they are without what a wrapper, an old version or a part did to them.

    These are a wrapper's prefix, TensorFlow's names of layer norms in the first BERT files, and
    the first part of the model's names, which a file of the trunk alone lacks.
    """
    yield {
        re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)): value
        for name, value in names.items()
    }
    for prefix in _PREFIXES:
        yield {name.removeprefix(prefix): value for name, value in names.items()}
    for first in dict.fromkeys(name.partition(".")[0] for name in own):
        yield {f"{first}.{name}": value for name, value in names.items()}


def _matches(names: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> int:
    return sum(name in own for name in names)


def _fits(own: Tensor, given: Tensor) -> bool:
    """Return whether `given` can be copied to `own`; another precision is converted."""
    kinds = [(value.is_floating_point(), value.is_complex()) for value in (own, given)]
    return (
        own.shape == given.shape
        and kinds[0] == kinds[1]
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


WRAPPERS = ("state_dict", "model_state_dict", "model", "weights", "net", "network", "module")
"""Names under which trainers keep a model's state dict, in the order of precedence."""

_DEPTH = 3  # of wrappers in wrappers
_CODE = re.compile(r"Unsupported (global|class|operand)|TorchScript|GLOBAL (\S+)", re.IGNORECASE)


def read_weights(path: Path, parameter: str) -> dict[str, Tensor]:
    """Return the tensors of the file `path` by key, on the CPU, out of their wrappers.

    Args:
        path: the file.
        parameter: the option that named it, for the message.

    Raises:
        InputError: for a file that is missing, damaged, of another format, without tensors, or that
            needs code to be executed.
    """
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        instead = (
            " A run's folder is given as init_from."
            if path.is_dir() and parameter == "pretrained"
            else ""
        )
        raise InputError(
            f"{parameter}: cannot read {path}: {error.strerror}. Give a file of weights, "
            f"safetensors or a state dict of torch.save.{instead}",
            parameter=parameter,
        ) from None
    # After eight bytes of length, safetensors has JSON.
    content = _safetensors(path, parameter) if start[8:] == b"{" else _torch(path, parameter)
    tensors = _unwrapped(content)
    if not tensors:
        raise InputError(
            f"{parameter}: {path} holds {_described(content)} and no tensors by name. Save them "
            "with torch.save(model.state_dict(), FILE).",
            parameter=parameter,
        )
    return tensors


def _safetensors(path: Path, parameter: str) -> dict[str, Tensor]:
    import safetensors
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, parameter, error) from None


def _torch(path: Path, parameter: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # it is torch.load that refuses TorchScript
            return _load(path)
    except Exception as error:  # of unpickling, of the archive, of the system
        code = _CODE.search(str(error))
        if isinstance(error, (pickle.UnpicklingError, RuntimeError)) and code:
            raise InputError(
                f"{parameter}: {path} holds more than tensors ({_what_code(str(error))}), and "
                "loading it would execute its code. Where you trust it, load it yourself and save "
                "the tensors: torch.save(model.state_dict(), FILE).",
                parameter=parameter,
            ) from None
        raise _unreadable(path, parameter, error) from None


def _load(path: Path) -> Any:
    try:
        # Pages that are not needed are not read.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap" not in str(error):
            raise
    # torch's format before 1.6 cannot be mapped.
    return torch.load(path, map_location="cpu", weights_only=True)


def _what_code(message: str) -> str:
    if match := re.search(r"GLOBAL (\S+)", message):
        return match[1].rstrip(".,")
    return "a TorchScript archive" if "TorchScript" in message else "Python objects"


def _unreadable(path: Path, parameter: str, error: Exception) -> InputError:
    text = " ".join(str(error).split()).partition(". ")[0]
    reason = text if " " in text else type(error).__name__
    return InputError(
        f"{parameter}: {path} is damaged, or no file of weights ({reason}). Give a safetensors "
        "file, or a state dict of torch.save.",
        parameter=parameter,
    )


def _unwrapped(content: Any, depth: int = _DEPTH) -> dict[str, Tensor]:
    """Return the tensors by key in `content`, or in the first wrapper that has some."""
    if not isinstance(content, Mapping):
        return {}
    for name in WRAPPERS if depth else ():
        if tensors := _unwrapped(content.get(name), depth - 1):
            return tensors
    return {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a dict of {', '.join(map(repr, list(content)[:5])) or 'nothing'}"
    return f"a {type(content).__name__}"
