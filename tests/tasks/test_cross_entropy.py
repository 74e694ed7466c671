"""Which function computes a task's loss: torch's, or our kernel for large vocabularies."""

from __future__ import annotations

import torch
from torch import nn

from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.kernels.runtime import call_counts, usage
from gallery_lib.tasks.domains import cross_entropy


def test_torchs_loss_is_used_for_few_logits_and_ours_for_a_large_vocabulary(monkeypatch):
    monkeypatch.setattr(cross_entropy, "LARGE", 1024 * 64)
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    labels = torch.arange(64)
    for rows, operators in ((63, set()), (64, {"cross_entropy_rows"})):
        logits, before = torch.randn(rows, 1024), call_counts.counts()
        with usage.on_cpu_too():
            loss = cross_entropy.cross_entropy(logits, labels[:rows])
        torch.testing.assert_close(loss, nn.functional.cross_entropy(logits, labels[:rows]))
        assert {operator for operator, _ in call_counts.counts() - before} == operators
