"""Hold trainings against the same trainings with other rounding: no run may be called another one.

    python -m tests.measure.comparison.same_against_same --runs 200

Small models are trained for real, in this process: convolutions with and without batch norm, an
MLP, an LSTM and a transformer, each in fp32 and in bfloat16 autocast, with SGD or AdamW, on fresh
or on repeated batches. The other run computes the same in another order: samples reversed,
channels_last, another number of threads, float64, or outputs of layers widened before what follows.
So its losses part as chance has it. `pair.check_curves` must let all of them pass, and find what
is planted with `--planted`: a loss off by 1 %, dropped momentum, a skipped update, from step 12 on.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.measure.comparison.pair import check_curves
from gallery_lib.measure.comparison.result import Check

STEPS = 67
CLASSES = 10
LATE = 11
"""Steps before the planted faults begin."""


class _Last(nn.Module):
    """An LSTM's or a transformer's outputs, reduced to one vector."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.inputs, self.layers, self.head = nn.Linear(48, 32), layers, nn.Linear(32, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Any = self.layers(self.inputs(images.reshape(len(images), 16, 48)))
        return self.head((outputs[0] if isinstance(outputs, tuple) else outputs).mean(1))


def _convolutions(*, norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1)]
        layers += [nn.BatchNorm2d(after)] if norm else []
        layers += [nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions and batch norm": lambda: _convolutions(norm=True),
    "convolutions": lambda: _convolutions(norm=False),
    "mlp": lambda: nn.Sequential(
        *(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()),
        nn.Linear(64, CLASSES),
    ),
    "lstm": lambda: _Last(nn.LSTM(32, 32, 2, batch_first=True)),
    "transformer": lambda: _Last(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
            2,
            enable_nested_tensor=False,
        )
    ),
}
ORDERS = ("reversed", "channels_last", "threads", "float64", "widened")
FAULTS = ("loss", "momentum", "skip")


@dataclass(frozen=True)
class Training:
    """A training, the same for the same values."""

    model: str
    amp_level: str
    seed: int
    optimizer: str
    batch_size: int
    batches: int

    def losses(
        self, order: str = "", *, moved: float = 0.0, fault: str = "", moved_by: int = 0
    ) -> list[float]:
        """Train; return the loss of each step.

        Args:
            order: how it is computed, of ORDERS.
            moved: relative size by which the weights are moved before.
            fault: what is wrong from step 12 on, of FAULTS.
            moved_by: seed of the move.
        """
        torch.manual_seed(self.seed)
        model = MODELS[self.model]()
        _prepare(model, order, moved, moved_by)
        torch.set_num_threads(2 if order == "threads" else 1)
        optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
            if self.optimizer == "SGD"
            else torch.optim.AdamW(model.parameters(), lr=3e-3)
        )
        data, losses = self._data(), []
        for step in range(STEPS):
            images, labels = data[step % len(data)]
            if order == "reversed":
                images, labels = images.flip(0), labels.flip(0)
            if order == "float64":
                images = images.double()
            if order == "channels_last":
                images = images.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.amp_level == "O1"):
                outputs = model(images)
            outputs = outputs if order == "float64" else outputs.float()
            loss = F.cross_entropy(outputs, labels)
            loss = loss * 1.01 if fault == "loss" and step >= LATE else loss
            loss.backward()
            losses.append(loss.item())
            if fault == "momentum" and step >= LATE:
                _drop_momentum(optimizer)
            if fault != "skip" or step < LATE or (step - LATE) % 50:
                optimizer.step()
        return losses

    def _data(self) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed + 1)
        classes = torch.randn(CLASSES, 3, 16, 16, generator=generator)
        data = []
        for _ in range(self.batches):
            labels = torch.randint(CLASSES, (self.batch_size,), generator=generator)
            noise = torch.randn(self.batch_size, 3, 16, 16, generator=generator)
            data.append((0.7 * classes[labels] + noise, labels))
        return data


def _prepare(model: nn.Module, order: str, moved: float, moved_by: int) -> None:
    generator = torch.Generator().manual_seed(moved_by)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.0 + moved * torch.randn(p.shape, generator=generator))
    if order == "float64":
        model.double()
    if order == "channels_last":
        model.to(memory_format=torch.channels_last)
    if order == "widened":
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                module.register_forward_hook(lambda module, inputs, output: output.float())


def _drop_momentum(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        for name in ("momentum_buffer", "exp_avg"):
            if name in state:
                state[name].zero_()


def drawn(seed: int) -> tuple[Training, str]:
    """Return the training of a seed, and the order in which its other run computes."""
    choice = random.Random(seed)
    names = list(MODELS)
    training = Training(
        names[seed % len(names)],
        choice.choice(("O0", "O1")),
        seed,
        choice.choice(("SGD", "AdamW")),
        choice.choice((4, 8, 16)),
        choice.choice((8, STEPS)),
    )
    orders = ["reversed", "threads", "float64" if training.amp_level == "O0" else "widened"]
    orders += ["channels_last"] if "convolutions" in training.model else []
    return training, choice.choice(orders)


def judged(training: Training, order: str, fault: str = "") -> Check:
    """Hold a training against the same one in another order, with a fault where one is planted."""
    rounding = {"O0": 2**-21, "O1": 2**-10}[training.amp_level]
    return check_curves(
        training.losses(),
        training.losses(order, fault=fault),
        training.amp_level,
        lambda move: training.losses(moved=rounding, moved_by=move),
        lambda move: training.losses(order, moved=rounding, moved_by=move, fault=fault),
    )


def main(arguments: list[str]) -> int:
    """Judge as many trainings as are asked for; return 1 if any is called another one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="trainings that are drawn")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--planted", action="store_true", help="plant each fault instead")
    options = parser.parse_args(arguments)
    wrong, found = 0, collections.Counter[str]()
    for seed in range(options.first, options.first + options.runs):
        training, order = drawn(seed)
        for fault in FAULTS if options.planted else ("",):
            check = judged(training, order, fault)
            if not check.passed and not fault:
                wrong += 1
                print(f"FALSE ALARM  {training} {order}: {check}", flush=True)
            found[f"{fault or 'same'}, {training.amp_level}"] += not check.passed
            found[f"{fault or 'same'}, {training.amp_level}, all"] += 1
    for name in sorted(name for name in found if not name.endswith("all")):
        print(f"{name}: {found[name]} of {found[f'{name}, all']} called another training")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
