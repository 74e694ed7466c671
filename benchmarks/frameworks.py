"""Measure what the acceleration gives inside other libraries' training loops, in turns.

    python3 benchmarks/frameworks.py --only resnet18 --library accelerate --out FILE

Four scripts train a task on the same batches: the library alone, with its own compilation, with
ours (the callback, or `gallery_lib.plug` in Accelerate), and a plain loop after `accelerate()`. All
are warm and paused but for their turns, in fp32. Ours must be ahead of the library's own
compilation by as much as `accelerate()` is. The libraries are of the extra `bench`. A library and a
task take some three minutes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import figures_file
import torch
from torch import nn

from gallery_lib import accelerate, tasks
from gallery_lib.measure.comparison import script_turns
from gallery_lib.stats import change_of_ratio
from gallery_lib.system import hardware

WAYS = ("alone", "own compilation", "ours", "accelerate()")
BATCHES, STEPS_OF_A_LINE = 4, 4
LOSS_TOLERANCE = 1e-4


class Loss(nn.Module):
    """A task's model with its loss, called as transformers.Trainer calls models."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.task, self.model = task, task.build_model()

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return the loss of a batch by its name."""
        return {"loss": self.task.loss(self.model, batch)}


class Log:
    """The lines that script_turns reads, by the losses of steps."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.step, self.began = batch_size, 0, time.perf_counter()

    def __call__(self, loss: torch.Tensor) -> None:
        """Count a step, and print a line after some."""
        if self.step % STEPS_OF_A_LINE == 0:
            value, now = loss.item(), time.perf_counter()
            rate = self.batch_size * STEPS_OF_A_LINE / (now - self.began)
            print(
                f"Epoch: 0, Step: {self.step}, Loss: {value:.6f}, Throughputs: {rate:.4f} samples/s"
            )
            self.began = now
        self.step += 1


def _trainer(model: Loss, batches: list[Any], way: str, log: Log) -> None:
    from transformers import Trainer, TrainingArguments

    from gallery_lib.adapters.trainer import GalleryCallback

    class Logged(Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(batches * 10_000, batch_size=None)

        def training_step(self, *given: Any, **named: Any) -> torch.Tensor:
            loss = super().training_step(*given, **named)
            log(loss)
            return loss

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=10**6,
            optim="adamw_torch",
            use_cpu=True,
            torch_compile=way == "own compilation",
            report_to=[],
            disable_tqdm=True,
            max_grad_norm=0,  # the other loops clip nothing either
            save_strategy="no",
            logging_strategy="no",
        )
        callbacks = [GalleryCallback()] if way == "ours" else None
        Logged(model, arguments, train_dataset=batches, callbacks=callbacks).train()


def _accelerate(model: Loss, batches: list[Any], way: str, log: Log) -> None:
    from accelerate import Accelerator

    if way == "ours":
        import gallery_lib.plug  # noqa: F401
    run = Accelerator(cpu=True, dynamo_backend=None if way == "alone" else "inductor")
    _loop(*run.prepare(model, _adamw(model)), batches, run.backward, log)


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=5e-5)


def _loop(model: Any, optimizer: Any, batches: list[Any], backward: Any, log: Log) -> None:
    for batch in itertools.cycle(batches):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        backward(loss)
        optimizer.step()
        log(loss)


LIBRARIES = {"trainer": _trainer, "accelerate": _accelerate}


def train(name: str, library: str, way: str) -> None:
    """Train a task for ever, logging; this is one of the scripts."""
    torch.set_num_threads(hardware.cores())
    task, config, values = figures_file.batches_of(name, BATCHES)
    batches = [{"batch": batch} for batch in values]
    model, log = Loss(task), Log(config.batch_size or task.batch_size)
    if way == "accelerate()":
        called = accelerate(model, _adamw(model))
        _loop(*called, batches, torch.Tensor.backward, log)
    else:
        LIBRARIES[library](model, batches, way, log)


def _rows(name: str, library: str, rounds: int) -> Iterator[list[str]]:
    scripts = {
        way: script_turns.Script(
            Path(__file__),
            ("--train", name, library, way),
            "fp32",
            starts_like=None if way == WAYS[0] else WAYS[0],
            tolerance=LOSS_TOLERANCE,
        )
        for way in WAYS
    }
    turns = script_turns.compare(scripts, rounds=rounds, lines=2)
    for way in WAYS:
        ratio, (_, parity) = turns.ratio(way), turns.parity(way)
        rate = f"{turns.samples_per_second(way):.1f}"
        yield [name, library, way, rate, str(ratio) if ratio else "–", parity]
    ours, own, called = (turns.ratio(way) for way in ("ours", "own compilation", "accelerate()"))
    if ours and own and called:
        for label, one in (("ours over own compilation", ours), ("accelerate() over it", called)):
            yield [name, library, label, "", str(change_of_ratio(own, one)), ""]


def main() -> int:
    """Compare, print and write the figures, and return the exit code."""
    parser = figures_file.parser(__doc__, tasks="train")
    parser.add_argument("--library", choices=[*LIBRARIES], nargs="+", default=[*LIBRARIES])
    figures_file.add_numbers(parser, rounds=(10, "turns of each script"))
    options = parser.parse_args()
    rows = [["task", "library", "way", "samples/s", "over the library alone", "first loss"]]
    for name, library in itertools.product(options.only, options.library):
        rows += _rows(name, library, options.rounds)
        figures_file.show(rows)
        figures_file.write(options.out, {}, "Inside other libraries' loops", rows)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        sys.exit(figures_file.exit_code(main))
