"""What the benchmarks share: their options, their turns, and the file of their figures.

A script imports this module first. It finds the checkout, and the script continues in the
environment that `prepare.sh` made. A file holds the figures, the conditions under which they hold,
and the table that `pages.py` shows of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
# A checkout works without being installed.
sys.path.insert(0, str(HERE.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if Path(sys.argv[0]).resolve().parent == HERE:
    run_in_prepared_environment()

from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.console.text import text_table
from gallery_lib.errors import InputError
from gallery_lib.stats import Ratio, turn_order
from gallery_lib.system import hardware
from gallery_lib.system.files import write_json

T = TypeVar("T")

RESULTS = HERE / "results"
_LOAD_AVERAGE = os.getloadavg()[0]
"""Load average of the last minute before anything was measured."""


def parser(description: str | None, *, tasks: str = "", out: bool = True) -> Any:
    """Return an argument parser with `--out FILE`, unless the script only prints.

    With `tasks`, the verb of its help text, it has `--only TASK…` as well.
    """
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out:
        text = "JSON file for the figures (default: printed only)"
        arguments.add_argument("--out", type=out_file, help=text)
    if tasks:
        from gallery_lib import tasks as known

        arguments.add_argument(
            "--only",
            nargs="+",
            choices=known.names(),
            default=known.names(),
            metavar="TASK",
            help=f"tasks to {tasks}; `gallery list` names them (default: all)",
        )
    return arguments


def add_numbers(arguments: argparse.ArgumentParser, **options: tuple[Any, ...]) -> None:
    """Add options that are whole numbers: each has a default, a help text, and its least value.

    The least value is 1 where none is given.
    """
    for name, (default, text, *least) in options.items():
        number = partial(whole_number, least=least[0] if least else 1)
        text = f"{text} (default: {default})"
        arguments.add_argument(f"--{name}", type=number, default=default, help=text)


def whole_number(text: str, least: int = 1) -> int:
    """Return the number: the type of an argument."""
    if not (text.isdecimal() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} on")
    return int(text)


def out_file(text: str) -> Path:
    """Return the path of a file that may be written, and make its folder: the type of `--out`."""
    path = Path(text)
    reason = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            reason = "its folder may not be written to"
    except OSError as error:
        reason = f"its folder cannot be made: {error.strerror}"
    if reason:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {reason}. Name another file")
    return path


def in_turns(
    forms: Iterable[str], rounds: int, turn: Callable[[str], T], *, warm_up: bool = False
) -> dict[str, list[T]]:
    """Return what `turn` gave for each form in each round.

    The order of forms reverses from round to round. With `warm_up` a round that does not count, in
    which a form compiles say, goes before.
    """
    blocks: dict[str, list[T]] = {form: [] for form in forms}
    for number in range(-warm_up, rounds):
        for form in turn_order(blocks, number):
            block = turn(form)
            if number >= 0:
                blocks[form].append(block)
    return blocks


def batches_of(name: str, count: int) -> tuple[Any, Any, list[Any]]:
    """Return a task, its options at the sizes for a few cores, and first batches, on the CPU."""
    import torch

    from gallery_lib import tasks
    from gallery_lib.config import TrainConfig
    from gallery_lib.data.loading.device_loader import DeviceLoader

    config = tasks.with_sizes(TrainConfig(model=name), "quick")
    train = tasks.data_of(config).train
    collate = getattr(train, "collate", None)
    loader = torch.utils.data.DataLoader(train, batch_size=config.batch_size, collate_fn=collate)
    on_cpu = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, shard=False)
    return tasks.get(name), config, list(itertools.islice(on_cpu, count))


def seconds_of_calls(call: Callable[[], object], calls: int) -> list[float]:
    """Return the seconds of each of so many calls on CUDA, one after the other.

    Events measure, so waiting for the host counts.
    """
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]


def median(blocks: Iterable[Iterable[float]]) -> float:
    """Return the median of all values of the blocks, each of which is one turn."""
    return statistics.median(itertools.chain.from_iterable(blocks))


def write(path: Path | None, values: dict[str, Any], heading: str, table: Any) -> None:
    """Write the figures with their conditions, atomically; do nothing without a path.

    The machine's page shows the `table` (rows of text, the header first) under the `heading`. The
    host's name is left out. `values` may replace conditions of the same name.
    """
    if path is not None:
        conditions = {
            "date": time.strftime("%Y-%m-%d"),
            "command": "python3 benchmarks/" + shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "environment": hardware.machine_facts(),
            "load_average_before": _LOAD_AVERAGE,
        }
        write_json(path, {**conditions, **values, "shown": {"heading": heading, "table": table}})


class Rows:
    """Rows of figures by name, printed and written as they come; `left` are those without any."""

    def __init__(self, path: Path | None, heading: str, planned: Iterable[object]) -> None:
        self.path, self.heading, self.planned = path, heading, list(map(str, planned))
        self.rows: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """Add figures to a row; lists are written, and not printed."""
        self.rows[name] = self.rows.get(name, {}) | figures
        short = {key: value for key, value in figures.items() if not isinstance(value, list)}
        print(name, json.dumps(short, ensure_ascii=False), flush=True)
        left = [name for name in self.planned if name not in self.rows]
        values = {"seconds": time.monotonic() - self._began, "left": left, "rows": self.rows}
        write(self.path, values, self.heading, [["row"], *([name] for name in self.rows)])


def earlier(path: Path | None, key: str) -> Any:
    """Return what an earlier run wrote under `key`, to continue; None where there is no file.

    Raises:
        InputError: for a damaged file.
    """
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text())[key]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be continued ({type(error).__name__}: {error}). "
            "Delete it, or name another file.",
            parameter=str(path),
        ) from error


def ratio_text(values: dict[str, float] | None) -> str:
    """Return a ratio of a file with its interval; `–` for none."""
    return str(Ratio(values["ratio"], values["low"], values["high"])) if values else "–"


def show(table: Sequence[Sequence[str]]) -> None:
    """Print the rows, aligned."""
    print(text_table(table), flush=True)


def exit_code(body: Callable[[], int]) -> int:
    """Return the exit code of `body`; an error or an interrupt is one message.

    `body` measures one thing after another, and writes what it has after each.
    """
    return exit_code_of(
        body,
        error_prefix="error",
        interrupted="interrupted; the file of --out has what was measured before, if anything was",
    )
