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
from pathlib import Path

if sys.argv[1:2] == ["--train"]:  # this process trains with the other checkout's package
    sys.path.insert(0, sys.argv[2])
else:
    import figures_file

from gallery_lib.errors import GalleryError, InputError
from gallery_lib.stats import ratio_of_medians, turn_order
from gallery_lib.system import hardware

HERE = Path(__file__).resolve().parent.parent
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

    def step() -> tuple[float, float]:
        began = clock()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.compute.bf16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return clock() - began, float(loss.detach())

    losses = [step()[1] for _ in range(WARMUP_STEPS)]
    print("loss", losses[0], flush=True)
    for _ in sys.stdin:
        step()  # the caches are the other one's
        print("seconds", *(step()[0] for _ in range(steps)), flush=True)


def _answer(process: subprocess.Popen[str], kind: str) -> list[float]:
    """Return the numbers of the next line of this kind."""
    assert process.stdout is not None
    for line in process.stdout:
        word, *numbers = line.split()
        if word == kind:
            return [float(number) for number in numbers]
    raise GalleryError(f"a training ended with exit code {process.wait()}; the reason is above.")


def main() -> int:
    """Run both checkouts in turns, print the ratio, and return the exit code."""
    from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE

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
        rounds=(10, "turns of each checkout, 4 or more"),
        steps=(8, "steps of a turn"),
    )
    arguments = vars(parser.parse_args())
    if not (arguments["before"] / "gallery_lib").is_dir() or arguments["rounds"] < 4:
        raise InputError("--before must be a checkout of this project, and --rounds 4 or more.")
    names = ("model", "image_size", "batch_size", "threads", "steps")
    words = [str(arguments[name]) for name in names]
    places = {"before": arguments["before"].resolve(), "after": HERE}
    seconds: dict[str, list[list[float]]] = {name: [] for name in places}
    with contextlib.ExitStack() as stack:
        trainings = {}
        for name, place in places.items():
            command = [sys.executable, __file__, "--train", str(place), *words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen(command, text=True, cwd=place, **pipes)
            trainings[name] = stack.enter_context(process)
            stack.callback(process.kill)
        first = {name: _answer(process, "loss")[0] for name, process in trainings.items()}
        tolerance = LOSS_TOLERANCE["O1" if hardware.computes_in_bf16("cpu") else "O0"]
        if abs(first["before"] - first["after"]) > tolerance * abs(first["before"]):
            print(f"not comparable: the first losses are {first['before']} and {first['after']}")
            return 1
        for number in range(arguments["rounds"]):
            for name in turn_order(trainings, number):
                print(file=trainings[name].stdin, flush=True)
                seconds[name].append(_answer(trainings[name], "seconds"))
    ratio = ratio_of_medians(seconds["before"], seconds["after"])
    print(f"{arguments['model']}: before over after {ratio}, {ratio.verdict}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[3], *map(int, sys.argv[4:]))
    else:
        sys.exit(figures_file.exit_code(main))
