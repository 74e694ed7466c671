"""Read a checkpoint, whose files are data and never execute code.

torch's reader unpickles the metadata of a checkpoint. Here only the classes that such metadata
consists of are allowed. All else is read with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.utils import _pytree as pytree

from gallery_lib.checkpoint.manifest import Unusable
from gallery_lib.checkpoint.staging import copied

_ALLOWED = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
}
_DTYPES = {str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)}


def _memory_format(owner: Any, name: str) -> Any:
    """Return a member of torch's enumeration of memory formats, which is pickled as an attribute.

    Raises:
        pickle.UnpicklingError: for an attribute of anything else.
    """
    if isinstance(owner, type) and owner.__name__ == "_MEM_FORMAT_ENCODING":
        return owner[name]  # type: ignore[index]
    raise pickle.UnpicklingError(f"{name} is no part of a checkpoint's metadata")


class _Unpickler(pickle.Unpickler):
    """Unpickler of the metadata of torch.distributed.checkpoint and of nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class.

        Raises:
            pickle.UnpicklingError: for anything else.
        """
        if (module, name) == ("builtins", "getattr"):
            return _memory_format
        if module in ("pathlib", "pathlib._local") and name.endswith("Path"):
            return PurePosixPath  # where the checkpoint was written
        if name in _ALLOWED.get(module, ()) or f"{module}.{name}" in _DTYPES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a checkpoint's metadata")


class Reader(dcp.FileSystemReader):
    """torch's reader of checkpoints, whose metadata executes no code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the names, shapes and dtypes of a checkpoint's tensors, and where each lies.

        Raises:
            pickle.UnpicklingError: where the file names a class that such metadata does not have.
        """
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _Unpickler(file).load()
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


_NO_CHECKPOINT = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading raises for a file that is no part of a checkpoint."""


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except _NO_CHECKPOINT as error:
        text = " ".join(str(error).split())[:200]
        raise Unusable(folder, f"cannot be read: {text}.", damaged=True) from error


def shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return size and dtype of each tensor in a checkpoint, by name."""
    with _damage_named(folder):
        entries = Reader(folder).read_metadata().state_dict_metadata
    return {
        name: (entry.size, entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def load_into(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Copy values of a checkpoint into tensors of the same names and sizes. Not collective."""
    with _damage_named(folder), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        flat = {name: tensor.detach() for name, tensor in tensors.items()}
        dcp.load(flat, storage_reader=Reader(folder), no_dist=True)


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


def plain_state(path: Path) -> dict[str, Any]:
    """Return a file of plain values, numpy's among them, and small tensors."""
    with _damage_named(path.parent):
        return _loaded(path)


def unreadable(value: Any) -> str:
    """Return which part of a nested value could not be read back, and why; "" where all could."""
    if not (reason := _reason_against(value)):
        return ""
    plain = (dict, list, tuple, OrderedDict)
    parts, _ = pytree.tree_flatten_with_path(value, is_leaf=lambda part: type(part) not in plain)
    for path, part in parts:
        if why := _reason_against(part):
            kind = f"{type(part).__module__}.{type(part).__qualname__}"
            if isinstance(part, Tensor):
                kind += f" of {part.dtype}, {part.layout} ({why})"
            return f"its {pytree.keystr(path)} is a {kind}"
    return reason


def _reason_against(value: Any) -> str:
    file = io.BytesIO()
    try:
        torch.save(copied(value), file)
        file.seek(0)
        _loaded(file)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        called = re.search(r"GLOBAL (\S+)", text)
        return f"reading it would execute {called[1]}" if called else text[:150]
    return ""
