"""Which function computes a task's loss: torch's, or our kernel for large vocabularies."""

from __future__ import annotations

import pytest
import torch
from own_operators import on_cpu_too
from torch import nn

from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.kernels import cross_entropy as own
from gallery_lib.kernels.runtime import operators
from gallery_lib.tasks.domains import cross_entropy


def test_torchs_loss_is_used_for_few_logits_and_ours_for_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(cross_entropy, "LARGE", 1024 * 64)
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    labels = torch.arange(64)
    for rows, expected in ((63, set()), (64, {"cross_entropy_rows"})):
        logits, before = torch.randn(rows, 1024), operators.counts()
        with on_cpu_too():
            loss = cross_entropy.cross_entropy(logits, labels[:rows])
        torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, labels[:rows]))
        assert {operator for operator, _ in operators.counts() - before} == expected


@pytest.mark.skipif(not own.available(), reason="needs a C++ compiler with OpenMP")
def test_ours_is_used_on_a_cpu_for_many_classes_where_kernels_are_on(monkeypatch):
    monkeypatch.setattr(cross_entropy, "LARGE", 64)
    rows, used = ("cross_entropy_rows", operators.KERNEL), {}
    for classes, dtype, backend in (
        (1024, torch.bfloat16, "1"),
        (1024, torch.float64, "1"),
        (255, torch.float32, "1"),
        (1024, torch.float32, "0"),
    ):
        monkeypatch.setenv(COMPILER_VARIABLE, backend)
        logits, labels = torch.randn(8, classes).to(dtype), torch.arange(8)
        before = operators.counts()
        loss = cross_entropy.cross_entropy(logits, labels)
        exact = nn.functional.cross_entropy(logits.double(), labels)
        torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
        used[classes, dtype, backend] = (operators.counts() - before)[rows]
    assert list(used.values()) == [1, 0, 0, 0]


@pytest.mark.parametrize("label", [-1, 1024, 2**40])
def test_a_label_outside_of_the_classes_is_an_error_on_a_cpu_as_with_torch(monkeypatch, label):
    monkeypatch.setattr(cross_entropy, "LARGE", 64)
    logits, labels = torch.randn(2, 1024), torch.tensor([label, -100])
    for backend in ("0", "1"):
        monkeypatch.setenv(COMPILER_VARIABLE, backend)
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            cross_entropy.cross_entropy(logits, labels)
