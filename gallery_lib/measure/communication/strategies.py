"""Strategies of averaging gradients, measured in turns in the processes of one run.

    gallery lab run -- -m gallery_lib.measure.communication.strategies --rounds 8 --out ways.json

Each strategy has one technique more than the one before. The trained model is small and has large
gradients (four layers), so that the network decides. Each strategy gets `rounds` turns of
`block_steps` steps. Two more steps are not counted: DDP orders its buckets anew. A step takes as
long as on the slowest rank. A strategy counts only if its gradients are right: each gradient is
compared with the mean of all ranks' own gradients in float64.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib import stats
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import SETTLING_STEPS, accelerate_ddp
from gallery_lib.config import Comm, StrategiesConfig
from gallery_lib.measure.communication.launch import end_after
from gallery_lib.system.files import write_json

PLAIN = "DDP"
# Name of the steps that would be left if the network took no time: every rank trains alone.
ALONE = "no communication"
# Largest error of a gradient over the gradient (L2), by wire format. It comes from rounding in
# fp32, or in the format, when the gradient is sent and when sums are sent on.
LIMITS = {"exact": 1e-6, "bf16": 0.01, "fp16": 0.002, "int8": 0.02}
LAYERS, BATCH_SIZE = 4, 64


def ways(hosts: process_group.Topology) -> dict[str, Comm]:
    """Return the strategies by name, DDP's own first; each has what the one before has."""
    strategies = {PLAIN: Comm()}
    small = Comm(bucket_mb=1, bucket_views=True)
    strategies["small buckets"] = small
    last = strategies["two streams"] = dataclasses.replace(small, streams=2)
    if hosts.uniform and len(hosts.hosts[0]) > 1:
        last = strategies["hierarchical"] = dataclasses.replace(last, hierarchical=True)
    strategies["bf16"] = dataclasses.replace(last, wire="bf16")
    strategies["int8"] = dataclasses.replace(last, wire="int8")
    return strategies


@dataclass(frozen=True)
class Effect:
    """What was measured of one strategy."""

    options: dict[str, Any]
    rounds: list[list[float]]  # step times in seconds, of the slowest rank
    # The step time of DDP's own strategy over this one's; None for DDP's own.
    ratio: stats.Ratio | None
    # By a host in a step, as its network card counted them; None where no card is named.
    sent_bytes: float | None
    gradient_error: float | None  # over the gradient, in L2; None without communication
    same_on_all_ranks: bool | None  # bit for bit

    @property
    def seconds(self) -> float:
        """Return the median step time in seconds."""
        return stats.percentiles([step for steps in self.rounds for step in steps])["p50"]

    @property
    def limit(self) -> float:
        """Return the limit for the error of the gradients."""
        return LIMITS[self.options["wire"]]

    @property
    def parity(self) -> str:
        """Return `passed`, `FAILED`, or why there is nothing to pass."""
        if self.gradient_error is None:
            return "not averaged"
        if not self.same_on_all_ranks:
            return "FAILED: ranks differ"
        return "passed" if self.gradient_error <= self.limit else "FAILED"


@dataclass(frozen=True)
class Effects:
    """What was measured of all strategies, by name, and the setting of the measurement."""

    hosts: str
    parameters: int
    ways: dict[str, Effect]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Effects:
        """Return the effects from the plain values that `dataclasses.asdict` made of them."""
        return msgspec.convert(values, cls)


# --------------------------------------------------------------------------------------------------
# The measurement


def build_model(width: int) -> nn.Module:
    """Return layers of width × width, with the same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.Tanh()))
    )


def _loss(outputs: Tensor) -> Tensor:
    return outputs.pow(2).mean()


def _card_bytes() -> int | None:
    """Return the bytes that the network card of gloo, if it was told one, has sent."""
    card = psutil.net_io_counters(pernic=True).get(os.environ.get("GLOO_SOCKET_IFNAME", ""))
    return None if card is None else card.bytes_sent


class _Training:
    """The model and its batch on this rank, with the float64 mean of all ranks' gradients."""

    def __init__(self, width: int) -> None:
        self.net = build_model(width)
        generator = torch.Generator().manual_seed(1 + process_group.rank())
        self.inputs = torch.randn(BATCH_SIZE, width, generator=generator)
        _loss(self.net(self.inputs)).backward()
        self.exact = self._gradients().double()
        dist.all_reduce(self.exact.div_(process_group.world_size()))
        self.model = nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.first_weights = {name: value.clone() for name, value in self.net.state_dict().items()}

    def _gradients(self) -> Tensor:
        gradients = (parameter.grad for parameter in self.net.parameters())
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])

    def _backward(self) -> None:
        self.optimizer.zero_grad()
        _loss(self.model(self.inputs)).backward()

    def parity(self, strategy: Comm) -> tuple[float, bool]:
        """Return the relative L2 error of the mean gradient, and whether ranks agree in every bit.

        The step starts from the first weights. The reference is the mean in float64.
        """
        self.net.load_state_dict(self.first_weights)
        accelerate_ddp(self.model, strategy)
        self._backward()
        mean = self._gradients()
        digests = process_group.all_ranks(hashlib.sha256(mean.numpy().tobytes()).digest())
        error = (mean.double() - self.exact).norm() / self.exact.norm()
        return error.item(), len(set(digests)) == 1

    def turn(self, strategy: Comm | None, block_steps: int) -> tuple[list[float], int | None]:
        """Return seconds of each counted step on the slowest rank, and what this host has sent.

        Without a strategy (None) nothing is communicated.
        """
        accelerate_ddp(self.model, strategy or Comm())
        seconds: list[float] = []
        before = None
        with self.model.no_sync() if strategy is None else contextlib.nullcontext():
            for number in range(SETTLING_STEPS + block_steps):
                if number in (0, SETTLING_STEPS):
                    dist.barrier()
                    before = _card_bytes()
                began = time.perf_counter()
                self._backward()
                self.optimizer.step()
                if number >= SETTLING_STEPS:
                    seconds.append(time.perf_counter() - began)
        # Every host passes the barrier once it has what the others sent: nothing is queued then.
        dist.barrier()
        after = _card_bytes()
        if strategy is None:
            self.net.load_state_dict(self.first_weights)  # the ranks' weights have gone apart
        slowest = [max(step) for step in zip(*process_group.all_ranks(seconds), strict=True)]
        return slowest, None if before is None or after is None else after - before


def measure(config: StrategiesConfig) -> int:
    """Run all turns on the ranks of this run; rank 0 prints a line per way and writes the file."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    process_group.ensure_initialized()
    hosts, first = process_group.find_topology(), process_group.rank() == 0
    training = _Training(config.width)
    candidates: dict[str, Comm | None] = {**ways(hosts), ALONE: None}
    parity = {name: training.parity(way) for name, way in candidates.items() if way is not None}
    seconds: dict[str, list[list[float]]] = {name: [] for name in candidates}
    sent: dict[str, list[int]] = {name: [] for name in candidates}
    for number in range(config.rounds):
        for name in stats.turn_order(candidates, number):
            steps, counted = training.turn(candidates[name], config.block_steps)
            seconds[name].append(steps)
            sent[name] += [counted] if counted is not None else []
        if first:
            print(f"round {number + 1} of {config.rounds}", flush=True)
    accelerate_ddp(training.model, Comm())
    by_name = {}
    for name, way in candidates.items():
        own = stats.percentiles(sent[name])["p50"] if sent[name] else -1.0
        of_a_host = max(process_group.all_ranks(own))
        by_name[name] = Effect(
            options=dataclasses.asdict(way or Comm()),
            rounds=seconds[name],
            ratio=None if name == PLAIN else stats.ratio_of_medians(seconds[PLAIN], seconds[name]),
            sent_bytes=of_a_host / config.block_steps if of_a_host >= 0 else None,
            gradient_error=parity[name][0] if way else None,
            same_on_all_ranks=parity[name][1] if way else None,
        )
        if first:
            print(f"{name}: {by_name[name].seconds:.3f} s a step", flush=True)
    if first and config.out:
        parameters = sum(parameter.numel() for parameter in training.net.parameters())
        effects = Effects(str(hosts), parameters, by_name)
        write_json(Path(config.out), dataclasses.asdict(effects))
    return 0


def main(arguments: Sequence[str]) -> None:
    """Run one process of the measurement, and end it."""
    end_after(measure, StrategiesConfig, arguments, "ways")


if __name__ == "__main__":
    main(sys.argv[1:])
