"""Compare a training step of two checkouts of this project, in turns: before and after a change.

    git worktree add /tmp/before COMMIT
    python3 benchmarks/two_checkouts.py --before /tmp/before --model resnet50 --image_size 64

Each checkout has a process that trains the same model of torchvision with `accelerate()` and AdamW,
in bf16 autocast where the processor computes in it. Both are alive, and take turns of a few steps.
The first losses have to agree. Then the time of a step before, over that after, is printed with its
interval: above 1 the checkout of this script is faster. On one thread the time is the processor's,
which neighbours disturb less.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
# A checkout works without being installed. A process that trains is told which one is its own.
sys.path.insert(0, sys.argv[2] if sys.argv[1:2] == ["--train"] else str(HERE))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__" and sys.argv[1:2] != ["--train"]:
    run_in_prepared_environment()

from gallery_lib.errors import GalleryError, InputError
from gallery_lib.system import hardware

WARMUP_STEPS = 3


def train(name: str, size: int, batch: int, threads: int, steps: int) -> None:
    """Print the first loss, then for each line of standard input the seconds of so many steps."""
    import torch
    import torchvision

    from gallery_lib import Config, accelerate

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)(num_classes=1000)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    config = Config()
    config.compute.bf16 = hardware.computes_in_bf16("cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerate(model, optimizer, config)
    clock = time.process_time if threads == 1 else time.perf_counter

    def step() -> float:
        began = clock()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.compute.bf16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        return clock() - began

    losses: list[float] = []
    for _ in range(WARMUP_STEPS):
        step()
    print("loss", losses[0], flush=True)
    for _ in sys.stdin:
        step()  # the caches are the other one's
        print("seconds", *(step() for _ in range(steps)), flush=True)


@contextlib.contextmanager
def _training(checkout: Path, words: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--train", str(checkout), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=checkout) as process:
        try:
            yield process
        finally:
            process.kill()


def _answer(process: subprocess.Popen[str], kind: str) -> list[float]:
    """Return the numbers of the next line of this kind."""
    assert process.stdout is not None
    for line in process.stdout:
        word, *numbers = line.split()
        if word == kind:
            return [float(number) for number in numbers]
    raise GalleryError(f"a training ended with exit code {process.wait()}; the reason is above.")


def _arguments() -> argparse.Namespace:
    import figures_file

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--model", default="resnet50", help="of torchvision (default: %(default)s)")
    figures_file.add_numbers(
        parser,
        image_size=(64, "pixels of a side"),
        batch_size=(4, "images of a step"),
        threads=(1, "threads of each process"),
        rounds=(10, "turns of each checkout"),
        steps=(8, "steps of a turn"),
    )
    arguments = parser.parse_args()
    if not (arguments.before / "gallery_lib").is_dir():
        raise InputError(
            f"--before {arguments.before} is no checkout of this project.", parameter="before"
        )
    import torchvision

    if arguments.model not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"--model {arguments.model}: torchvision has none.", parameter="model")
    if arguments.rounds < 4:
        raise InputError("--rounds must be at least 4.", parameter="rounds")
    return arguments


def main() -> int:
    """Run both checkouts in turns, print the ratio, and return the exit code."""
    from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE
    from gallery_lib.stats import ratio_of_medians, turn_order

    arguments = _arguments()
    names = ("model", "image_size", "batch_size", "threads", "steps")
    words = [str(getattr(arguments, name)) for name in names]
    seconds: dict[str, list[list[float]]] = {"before": [], "after": []}
    with _training(arguments.before.resolve(), words) as before, _training(HERE, words) as after:
        trainings = {"before": before, "after": after}
        first = {name: _answer(process, "loss")[0] for name, process in trainings.items()}
        tolerance = LOSS_TOLERANCE["O1" if hardware.computes_in_bf16("cpu") else "O0"]
        if abs(first["before"] - first["after"]) > tolerance * abs(first["before"]):
            print(f"not comparable: the first losses are {first['before']} and {first['after']}")
            return 1
        for number in range(arguments.rounds):
            for name in turn_order(trainings, number):
                pipe = trainings[name].stdin
                assert pipe is not None
                print(file=pipe, flush=True)
                seconds[name].append(_answer(trainings[name], "seconds"))
    ratio = ratio_of_medians(seconds["before"], seconds["after"])
    print(f"{arguments.model}: before over after {ratio}, {ratio.verdict}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[3], *map(int, sys.argv[4:]))
        sys.exit(0)
    from figures_file import exit_code

    sys.exit(exit_code(main))
