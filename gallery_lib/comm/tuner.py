"""Find the fastest strategy for averaging gradients by measuring candidates in the real training.

Candidates take turns over the first steps. Every step of a turn is a step of the training, and all
lossless candidates compute the same, so nothing is lost. The score is the median step time of the
slowest rank. All ranks follow one choice: the best candidate whose gain over plain DDP is certain,
else plain DDP. The choice is printed with a table; each run measures anew.

A step lies between two backward passes whose gradients are averaged. Turns change at the end of
such a pass, to which all ranks have come: their numbers of forward passes need not be the same.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from gallery_lib import stats
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import (
    SETTLING_STEPS,
    accelerate_ddp,
    check_possible,
    use_strategy,
)
from gallery_lib.comm.process_group import Topology
from gallery_lib.comm.reducer import SHARED_MEMORY
from gallery_lib.comm.torch_ddp import DDP, after_backward, is_joined, own_averaging
from gallery_lib.config import Comm
from gallery_lib.console.text import seconds, text_table
from gallery_lib.system.processes import tell

PLAIN = "ddp"
"""Name of the candidate that is plain DDP."""


class Tuner:
    """Measurement that switches a DDP's strategy after some backward passes, until the choice.

    The constructor is a collective call.

    Args:
        model: the DistributedDataParallel to tune.
        strategies: candidate options by name; `ddp`, with which others are compared, is the first.
        rounds: turns of each candidate.
        block_steps: counted steps of a turn.
    """

    def __init__(
        self,
        model: DDP,
        strategies: Mapping[str, Comm],
        *,
        rounds: int = 6,
        block_steps: int = 5,
    ) -> None:
        assert next(iter(strategies)) == PLAIN
        self.strategies = dict(strategies)
        self.block_steps = block_steps
        self.choice: str | None = None
        self._name = type(model.module).__name__
        self._seconds: dict[str, list[list[float]]] = {name: [] for name in self.strategies}
        self._order = iter(
            [name for turn in range(rounds) for name in stats.turn_order(self.strategies, turn)]
        )
        self._current, self._step, self._began = "", 0, 0.0
        _say(
            f"{self._name}: {len(self.strategies)} ways of averaging gradients take turns over the "
            f"first {len(self.strategies) * rounds * (SETTLING_STEPS + block_steps)} steps. "
            "Gradients may lie in DDP's buckets: one that is kept over a step is overwritten."
        )
        self._change(model)

    def _backward_ended(self, model: DDP) -> None:
        if not is_joined(model):  # else some ranks stand by
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            self._step += 1
            if self._step > SETTLING_STEPS:
                self._seconds[self._current][-1].append(time.perf_counter() - self._began)
            if self._step == SETTLING_STEPS + self.block_steps:
                self._change(model)
                return
        self._began = time.perf_counter()
        after_backward(model, self._backward_ended)

    def _change(self, model: DDP) -> None:
        if own_averaging(model):
            self.choice = PLAIN
            _say(f"{self._name}: gradients are averaged by the model's own communication hook.")
            return
        name = next(self._order, None)
        if name is None:
            self._decide(model)
            return
        self._step, self._current = 0, name
        self._seconds[name].append([])
        use_strategy(model, self.strategies[name])
        self._began = time.perf_counter()
        after_backward(model, self._backward_ended)

    def _decide(self, model: DDP) -> None:
        """Take the candidate with the largest certain gain, and print the table of step times."""
        measured = {
            name: stats.slowest_rank(process_group.all_ranks(blocks))
            for name, blocks in self._seconds.items()
        }
        table = [
            ["gradients averaged by", "step time p50", f"{PLAIN} over it (interval)", "verdict"]
        ]
        best_ratio, fastest = 1.0, PLAIN
        for name, blocks in measured.items():
            p50 = seconds(stats.percentiles([step for block in blocks for step in block])["p50"])
            if name == PLAIN:
                table.append([name, p50, "", "baseline"])
                continue
            ratio = stats.ratio_of_medians(measured[PLAIN], blocks, confidence=0.99)
            table.append([name, p50, str(ratio), ratio.verdict])
            if ratio.verdict == "faster" and ratio.ratio > best_ratio:
                best_ratio, fastest = ratio.ratio, name
        self.choice = process_group.from_rank_0(fastest)
        use_strategy(model, self.strategies[self.choice])
        _say(text_table(table))
        _say(f"{self._name}: gradients are averaged by `{self.choice}`.")


def _say(text: str) -> None:
    if dist.get_rank() == 0:
        tell(text)


def apply(model: DDP, options: Comm) -> Tuner | None:
    """Have `model` average gradients as `options` say. A collective call.

    With `options.tune`, return a Tuner that chooses over the next steps; else return None.
    """
    if not options.tune or dist.get_world_size() == 1:
        accelerate_ddp(model, options)
        return None
    check_possible(model, options)
    hosts = process_group.find_topology()
    strategies = candidates(options, hosts)
    if not all(process_group.all_ranks(_has_room(model, options, hosts))):
        strategies = {name: way for name, way in strategies.items() if not way.hierarchical}
    return Tuner(model, strategies)


def candidates(options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the tuner's candidates on these hosts by name, plain DDP first.

    They are lossless, unless `options.wire` asks for another wire format.
    """
    options = dataclasses.replace(options, tune=False, bucket_views=True)
    two = dataclasses.replace(options, streams=2)
    strategies = {
        # This decides what training does, not how fast it is.
        PLAIN: Comm(find_unused_parameters=options.find_unused_parameters),
        "views": options,
        "views, 2 streams": two,
        "small buckets, 2 streams": dataclasses.replace(two, bucket_mb=8),
    }
    if hosts.uniform and len(hosts.hosts[0]) > 1:
        both = dataclasses.replace(options, hierarchical=True)
        strategies |= {
            "hierarchical": both,
            "hierarchical, 2 streams": dataclasses.replace(both, streams=2, bucket_mb=8),
        }
    return strategies


def _has_room(model: DDP, options: Comm, hosts: Topology) -> bool:
    """Return whether this host has the shared memory that hierarchical strategies may need, twice.

    A stream's buffer is at most 1.5 times as large as a bucket. NCCL is hierarchical by itself.
    """
    if model.device.type == "cuda":
        return False
    size = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    bucket = max(model.bucket_bytes_cap, int((options.bucket_mb or 0) * 2**20))
    rows = (len(hosts.hosts[0]) + 1) * options.streams
    return 2 * rows * min(size, 3 * bucket // 2) < shutil.disk_usage(SHARED_MEMORY).free
