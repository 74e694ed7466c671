"""Measure steps beside other work, with threads that spin while they wait and with the watch.

    python3 benchmarks/busy.py --only tts_angular resnet18 --out FILE

Each form (eager, torch.compile, ours) trains alone; beside one process that takes a core; with a
quota of one core, which needs root; and two and four at once. All trainings of a row switch
together, by the clock: a turn as torch comes, and a turn with the watch of
`gallery_lib.system.spinning`, whose first seconds do not count. A ratio says how many times as fast
a step is with the watch. A row takes two to four minutes, and a task has fifteen.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import figures_file
import torch

from gallery_lib import accelerate
from gallery_lib.config import Config
from gallery_lib.stats import ratio_of_medians
from gallery_lib.system import hardware, spinning
from gallery_lib.system.processes import end_supervised, start_supervised

FORMS = ("eager", "torch.compile", "ours")
BESIDE = ("alone", "a neighbour on one core", "a quota of one core", "two at once", "four at once")
TURN, SETTLING = 12.0, 3.0
"""Seconds of a turn, and of its beginning, which the watch may take to switch."""
WARM_UP, MOST_TURNS = 8, 40
LOOP = "print('warm', flush=True)\nwhile True: pass"
# A compiler's workers would compete with the steps.
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def train(name: str, form: str, rounds: int) -> None:
    """Train and switch by the clock; print when it is warm, and at the end step times by turn.

    0 rounds: for ever.
    """
    torch.set_num_threads(hardware.cores())
    torch.manual_seed(0)
    task, _, batches = figures_file.batches_of(name, 4)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    if form == "ours":
        config = Config()
        config.compute.share_cores = False
        model, optimizer = accelerate(model, optimizer, config)
    elif form == "torch.compile":
        model.compile()
    turns: tuple[list[list[float]], ...] = [], []  # as it comes, and with the watch
    turn, switched, kind = -1.0, 0.0, 0
    for number, batch in enumerate(itertools.cycle(batches)):
        began = time.monotonic()
        if number == WARM_UP:
            print("warm", flush=True)
        if number >= WARM_UP and began // TURN != turn:
            turn, switched = began // TURN, began
            kind = int(turn) % 2
            enough = min(sum(map(bool, one)) for one in turns) >= rounds
            if rounds and (enough or sum(map(len, turns)) == MOST_TURNS):
                break
            (spinning.watch if kind else spinning.stop)()
            turns[kind].append([])
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        if number >= WARM_UP and began - switched >= SETTLING:
            turns[kind][-1].append(time.monotonic() - began)
    print(json.dumps([[one for one in of_kind if one][:rounds] for of_kind in turns]))


@contextlib.contextmanager
def _quota(cores: int) -> Iterator[list[str]]:
    """Context: words before a command that run it with so many cores' time, by cgroup 1 or 2."""
    root = Path("/sys/fs/cgroup")
    old = (root / "cpu").is_dir()
    group = (root / "cpu" if old else root) / f"gallery-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("cpu.cfs_quota_us" if old else "cpu.max")).write_text(f"{cores * 100_000}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()


@contextlib.contextmanager
def _started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Context: start a command, and wait until it is warm; nothing of it is left behind."""
    process = start_supervised(words, ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        end_supervised(process)


def _row(name: str, form: str, beside: str, rounds: int) -> list[str]:
    own = [sys.executable, __file__, "--train", name, form]
    others = {
        "a neighbour on one core": [[sys.executable, "-c", LOOP]],
        "two at once": [[*own, "0"]],
        "four at once": [[*own, "0"]] * 3,
    }
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(_quota(1)) if "quota" in beside else []
        for words in others.get(beside, []):
            stack.enter_context(_started(words))
        printed, _ = stack.enter_context(_started([*before, *own, str(rounds)])).communicate()
    turns = json.loads(printed.splitlines()[-1])
    medians = [f"{figures_file.median(of_kind) * 1e3:.1f} ms" for of_kind in turns]
    fewest = min(map(len, turns))
    return [name, form, beside, *medians, str(ratio_of_medians(*(one[:fewest] for one in turns)))]


def main() -> int:
    """Measure, print and write the figures, and return the exit code."""
    parser = figures_file.parser(__doc__, tasks="train")
    for name, known in (("forms", FORMS), ("beside", BESIDE)):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known)
    figures_file.add_numbers(parser, rounds=(4, "turns of each kind", 4))
    options = parser.parse_args()
    rows = [["task", "form", "beside", "as torch comes", "with the watch", "times as fast"]]
    for name, beside, form in itertools.product(options.only, options.beside, options.forms):
        try:
            rows.append(_row(name, form, beside, options.rounds))
        except (OSError, ValueError, IndexError) as error:
            rows.append([name, form, beside, f"not measured: {error}", "", ""])
        print(*rows[-1], sep="  ", flush=True)
        figures_file.write(options.out, {}, "Beside other work", rows)
    figures_file.show(rows)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(figures_file.exit_code(main))
