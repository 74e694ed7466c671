"""Memory that is touched ahead is what the next tensors get."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from gallery_lib import memory, optim

FIRST_USE = """
import resource, sys, torch
from gallery_lib import memory

assert memory.keep_large_blocks().startswith(memory.KEEPS)
torch.set_num_threads(1)
torch.ones(1000)
if ahead := int(sys.argv[1]):
    memory.touch_ahead(ahead).join()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
tensors = [torch.ones(2**21) for _ in range(16)]  # 128 MiB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    memory.reason_not_applied() is not None,
    reason="needs glibc 2.35 or newer, without another allocator preloaded",
)
def test_what_was_touched_ahead_has_no_page_faults_when_it_is_used():
    def faults(ahead: int) -> int:
        environment = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
        command = [sys.executable, "-c", FIRST_USE, str(ahead)]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    assert faults(160 * 2**20) < 300 < 30_000 < faults(0)


def test_nothing_is_touched_where_nothing_is_needed_or_freed_blocks_are_not_kept(monkeypatch):
    assert memory.touch_ahead(0) is None
    monkeypatch.setattr(memory, "reason_not_applied", lambda: "another allocator")
    assert memory.touch_ahead(1) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AdamW", {}),
        ("RAdam", {}),
        ("SGD", {"lr": 0.1}),
        ("SGD", {"lr": 0.1, "momentum": 0.9}),
        ("RMSprop", {"momentum": 0.9}),
    ],
)
def test_what_an_optimizer_needs_is_what_it_has_after_its_first_step(name, arguments):
    model = nn.Linear(8, 4)
    model.bias.requires_grad_(False)
    optimizer = getattr(torch.optim, name)(model.parameters(), **arguments)
    expected = optim.first_step_bytes(optimizer)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    states = [model.weight.grad, *optimizer.state[model.weight].values()]
    tensors = [state for state in states if torch.is_tensor(state) and state.dim()]
    assert expected == sum(tensor.numel() * 4 for tensor in tensors)


KEPT = """
import psutil, torch
from gallery_lib import memory

assert memory.keep_large_blocks().startswith(memory.KEEPS)
resident = psutil.Process().memory_info
before = resident().rss
# Blocks of a model's size, and a small one above them that holds on to the heap's end.
blocks = [torch.ones(2**24) for _ in range(8)]  # 512 MiB
above = torch.ones(2**10)
del blocks
kept = resident().rss - before
memory.trim()
print(kept // 2**20, (resident().rss - before) // 2**20)
"""


@pytest.mark.skipif(
    memory.reason_not_applied() is not None, reason="needs glibc 2.35, whose memory is kept"
)
def test_memory_that_is_kept_is_given_back_on_demand():
    done = subprocess.run(
        [sys.executable, "-c", KEPT], capture_output=True, text=True, check=True, timeout=120
    )
    kept, left = map(int, done.stdout.split())
    assert kept > 400 and left < 100
