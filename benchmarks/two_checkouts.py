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

import itertools
import os
import sys
import time
from pathlib import Path

if sys.argv[1:2] == ["--train"]:  # this process trains with a checkout's own package and cache
    sys.path.insert(0, sys.argv[2])
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
else:
    import figures_file

from gallery_lib.errors import InputError
from gallery_lib.stats import ratio_of_medians
from gallery_lib.system import hardware


def train(name: str, size: int, batch: int, threads: int) -> None:
    """Train for ever, and log the loss and the rate of each step as `script_turns` reads them."""
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
    for step in itertools.count():
        began = clock()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=config.compute.bf16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        rate = batch / (clock() - began)
        print(f"Epoch: 0, Step: {step}, Loss: {loss:.6f}, Throughputs: {rate:.6f} samples/s")


def main() -> int:
    """Run both checkouts in turns, print the ratio, and return the exit code."""
    from gallery_lib.measure.comparison import script_turns
    from gallery_lib.measure.comparison.parity import LOSS_TOLERANCE

    parser = figures_file.parser(__doc__, out=False)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--model", default="resnet50", help="of torchvision (default: %(default)s)")
    figures_file.add_numbers(
        parser,
        image_size=(64, "pixels of a side"),
        batch_size=(4, "images of a step"),
        threads=(1, "threads of each process"),
        rounds=(10, "turns of each checkout, 4 or more", 4),
        steps=(8, "steps of a turn"),
    )
    options = parser.parse_args()
    if not (options.before / "gallery_lib").is_dir():
        raise InputError("--before must be a checkout of this project.")
    words = (options.model, *map(str, (options.image_size, options.batch_size, options.threads)))
    precision = "O1" if hardware.computes_in_bf16("cpu") else "O0"
    scripts = {
        name: script_turns.Script(
            Path(__file__).resolve(),
            ("--train", str(place.resolve()), *words),
            precision,
            starts_like="before",
            tolerance=LOSS_TOLERANCE[precision],
        )
        for name, place in {"before": options.before, "after": figures_file.HERE.parent}.items()
    }
    turns = script_turns.compare(scripts, rounds=options.rounds, lines=options.steps)
    comparable, why = turns.parity("after")
    if not comparable:
        print(f"not comparable: {why}")
        return 1
    # Not `turns.ratio`, whose interval allows for a baseline that gives its memory back.
    seconds = [[[1 / rate for rate in turn] for turn in rounds] for rounds in turns.rounds.values()]
    ratio = ratio_of_medians(*seconds)
    print(f"{options.model}: before over after {ratio}, {ratio.verdict}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[3], *map(int, sys.argv[4:]))
    else:
        sys.exit(figures_file.exit_code(main))
