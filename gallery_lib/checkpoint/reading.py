"""Read a checkpoint, whose files are data and never execute code.

torch's reader unpickles the metadata of a checkpoint. Here only the classes that such metadata
consists of are allowed. All else is read with `weights_only=True`.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from gallery_lib.checkpoint.manifest import Unusable

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


def plain_state(path: Path) -> dict[str, Any]:
    """Return a file of plain values and small tensors."""
    with _damage_named(path.parent):
        return torch.load(path, map_location="cpu", weights_only=True)
