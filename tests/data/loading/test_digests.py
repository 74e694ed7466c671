"""Digests of data are equal for equal data, and differ for another share or order of it.

It does not matter where the data lies.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from gallery_lib.data.loading.comparison import digest, of_data


@dataclasses.dataclass
class Sample:
    x: Any
    name: str = "a"


class Opaque:
    def __init__(self, value: Any) -> None:
        self.value = value


VALUES: list[Any] = [
    None, True, 1, 1.0, "1", b"1", 2, [1], (1,), [[1]], {"x": 1}, {"y": 1}, {1, 2},
    torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2, 1), torch.tensor(1.0),
    torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.complex64),
    np.ones(2), np.ones(2, np.float32), np.array(["a", 1], dtype=object),
    Sample(1), Sample(2), Sample(torch.ones(1)), Opaque(1), Opaque(2),
    Image.new("L", (2, 2)), Image.new("L", (2, 2), 5), Path("a"),
    torch.eye(2).to_sparse(), float("nan"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal_values_have_equal_digests(value: Any) -> None:
    assert digest(pickle.loads(pickle.dumps(value))) == digest(value)


def test_different_values_have_different_digests() -> None:
    assert len({digest(value) for value in VALUES}) == len(VALUES)


def test_a_value_that_holds_itself_has_a_digest() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert len(digest(value)) == 32


class Files(Dataset[str]):
    def __init__(self, files: list[Any]) -> None:
        self.files, self.cache, self.root = files, {}, object()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> str:
        raise AssertionError("no item is read")


def files(root: str, share: slice = slice(None)) -> Files:
    return Files([Path(root, f"{number}.jpg") for number in range(8)][share])


def test_data_sets_are_told_apart_by_what_they_keep() -> None:
    x = torch.arange(8.0)
    shares: list[Any] = [
        files("/a"), files("/a", slice(0, 4)), files("/a", slice(4, 8)),
        Subset(files("/a"), [0, 1, 2, 3]), Subset(files("/a"), [4, 5, 6, 7]),
        TensorDataset(x[::2]), TensorDataset(x[1::2]), list(range(4)), list(range(4, 8)),
        range(4), np.arange(4), np.arange(4, 8),
        ConcatDataset([TensorDataset(x[::2]), TensorDataset(x[1::2])]),
        ConcatDataset([TensorDataset(x[1::2]), TensorDataset(x[::2])]),
    ]  # fmt: skip
    digests = [of_data(share) for share in shares]
    # A list and a range of the same numbers are the same data.
    assert len(set(digests) - {of_data(range(4))}) == len(shares) - 2
    assert of_data(files("/a")) == of_data(files("/another/host"))
