"""Measure steps beside other work, with threads that spin while they wait and with the watch.

    python3 benchmarks/busy.py --only tts_angular resnet18 --out FILE

Each form (eager, torch.compile, ours) trains alone; beside one process that takes a core; with a
quota of one core, which needs root; and two and four at once. All trainings of a row switch
together, by the clock: some seconds as torch comes, and some with the watch of
`gallery_lib.system.spinning`. The first half of each turn does not count. A ratio says how many
times as fast a step is with the watch. A task takes some six minutes.
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

from gallery_lib import accelerate, tasks
from gallery_lib.config import Config, TrainConfig
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.stats import ratio_of_medians
from gallery_lib.system import hardware, spinning

FORMS = ("eager", "torch.compile", "ours")
BESIDE = ("alone", "a neighbour on one core", "a quota of one core", "two at once", "four at once")
AS_IT_COMES, WATCHED = 0, 1
TURN_SECONDS = 6.0
LOOP = "while True: pass"


def train(name: str, form: str, rounds: int) -> None:
    """Train, switch by the clock, and print the step times by turn; 0 rounds: for ever."""
    torch.set_num_threads(hardware.cores())
    torch.manual_seed(0)
    task = tasks.get(name)
    config = tasks.with_sizes(TrainConfig(model=name), "quick")
    model = task.build_model()
    train = tasks.data_of(config).train
    loader = torch.utils.data.DataLoader(
        train, batch_size=config.batch_size, collate_fn=getattr(train, "collate", None)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    if form == "ours":
        chosen = Config()
        chosen.compute.share_cores = False
        model, optimizer = accelerate(model, optimizer, chosen)
    elif form == "torch.compile":
        model.compile()
    on_cpu = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, shard=False)
    batches = itertools.cycle(list(itertools.islice(on_cpu, 4)))
    turns: list[list[list[float]]] = [[], []]
    last, counts = -1, False
    for number, batch in enumerate(batches):
        began = time.monotonic()
        turn, into = divmod(began, TURN_SECONDS)
        watched = int(turn) % 2
        if number >= 8 and turn != last:  # the first steps compile
            spinning.watch() if watched else spinning.stop()
            last, counts = turn, into < 1  # a turn that was begun late is none
            done = min(map(len, turns)) - 1
            if counts:
                turns[watched].append([])
            if rounds and done >= rounds:
                break
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
        if counts and turns[watched] and into > TURN_SECONDS / 2:
            turns[watched][-1].append(time.monotonic() - began)
    print(json.dumps([[turn for turn in kind if turn][:rounds] for kind in turns]))


@contextlib.contextmanager
def _quota(cores: int) -> Iterator[list[str]]:
    """Context: words before a command that run it with so many cores' time, by cgroup 1 or 2."""
    root = Path("/sys/fs/cgroup")
    old = (root / "cpu").is_dir()
    group = (root / "cpu" if old else root) / f"gallery-{os.getpid()}"
    group.mkdir()
    try:
        if old:
            (group / "cpu.cfs_quota_us").write_text(str(cores * 100_000))
        else:
            (group / "cpu.max").write_text(f"{cores * 100_000} 100000")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for _ in range(20):  # processes of the compiler may still be ending
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.5)


def _row(name: str, form: str, beside: str, rounds: int) -> list[str]:
    own = [sys.executable, __file__, "--train", name, form]
    others = {"a neighbour on one core": [[sys.executable, "-c", LOOP]]}
    others |= {"two at once": [[*own, "0"]], "four at once": [[*own, "0"]] * 3}
    try:
        with _quota(1) if "quota" in beside else contextlib.nullcontext([]) as before:
            started = [
                subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for words in others.get(beside, [])
            ]
            try:
                done = subprocess.run(
                    [*before, *own, str(rounds)], stdout=subprocess.PIPE, check=True
                )
            finally:
                for one in started:
                    one.kill()
                    one.wait()
    except OSError as error:
        return [name, form, beside, f"not measured: {error}", "", ""]
    turns = json.loads(done.stdout)
    medians = [f"{figures_file.median(turns[kind]) * 1e3:.1f} ms" for kind in (0, 1)]
    return [name, form, beside, *medians, str(ratio_of_medians(*turns))]


def main() -> int:
    """Measure, print and write the figures, and return the exit code."""
    parser = figures_file.parser(__doc__, tasks="train")
    figures_file.add_numbers(parser, rounds=(4, "turns of each kind", 4))
    options = parser.parse_args()
    rows = [["task", "form", "beside", "as torch comes", "with the watch", "times as fast"]]
    for name, beside, form in itertools.product(options.only, BESIDE, FORMS):
        rows.append(_row(name, form, beside, options.rounds))
        figures_file.write(options.out, {}, "Beside other work", rows)
        print(*rows[-1], sep="  ", flush=True)
    figures_file.show(rows)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(figures_file.exit_code(main))
