"""Commands, moments and faults at random, and what must hold whatever happens.

No process is left, and nothing listens beyond the loopback address. No result is lost or half
written. The command succeeds, or it ends with one clear message. A breach is planted (`planted/`)
to see that it would be found.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from gallery_lib.system.processes import search_path

from .commands import EVERY, compare, data, train
from .driver import ROOT, Command, Workspace, message_of, started, workers
from .planted.sitecustomize import BREACHES

# Limit for a command with everything that befalls it; the longest takes a third of that alone.
_LIMIT_SECONDS = 240.0
# Limits for the end of all processes, once the command was told to end, or was killed: the shortest
# command would have ended by itself a little later.
_END_SECONDS, _KILLED_SECONDS = 45.0, 10.0
_MESSAGE_LINES = 40
# What Python says when its resource tracker was killed and started anew; nothing is lost.
_OF_PYTHONS_TRACKER = re.compile(
    r"Traceback \(most recent call last\):\n  File \"[^\"]*resource_tracker\.py\".*\n"
    r"(?:    .*\n)+KeyError: .*\n"
)
_RESULTS = ("config.json", "steps.jsonl", "results.json", "comparison.json", "report.json")


@dataclass
class Try:
    """One command, what befell it, and what was wrong."""

    command: str
    fault: str
    moment: float  # seconds from the command's start or, with `file`, from when that file is there
    file: str | None = None
    said: list[str] = field(default_factory=list)
    blamed: int | None = None  # the rank that was killed


_TWO = "train, two processes"
_GONE = (psutil.Error, IndexError, ProcessLookupError, ValueError)


def _trains(command: Command) -> bool:
    """Wait for a first step, and return whether there was one."""
    return command.wait_until(lambda: command.workspace.steps() > 0, _END_SECONDS)


def _kill_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Kill any process of the command but itself; of two ranks it is known which to blame."""
    with contextlib.suppress(*_GONE):
        ranks = workers(command) if done.command == _TWO and _trains(command) else []
        if len(ranks) == 2:
            done.blamed = chosen.randrange(2)
            ranks[done.blamed].kill()
            return
        others = [process for process in command.everything() if process.pid != command.process.pid]
        chosen.choice(others).kill()


def _stop_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Suspend a process that trains: for 3 s, or for good where two ranks watch one another."""
    with contextlib.suppress(*_GONE):
        _trains(command)
        process = chosen.choice(workers(command))
        process.suspend()
        if done.command != _TWO:
            time.sleep(3)
            process.resume()


def _corrupt(chosen: random.Random, command: Command, done: Try) -> None:
    """Cut or overwrite a file of the cache, but for its data."""
    with contextlib.suppress(OSError, IndexError):
        found = command.workspace.cache.rglob("*")
        path = chosen.choice([one for one in found if one.is_file() and "data" not in one.parts])
        if chosen.random() < 0.5:
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(os.urandom(300))


FAULTS: dict[str, Callable[[random.Random, Command, Try], None]] = {
    "signal": lambda chosen, command, done: command.process.send_signal(
        chosen.choice([signal.SIGINT, signal.SIGTERM])
    ),
    "kill": lambda chosen, command, done: command.process.kill(),
    "kill one": _kill_one,
    "stop": _stop_one,
    "close": lambda *_: None,  # the reader of the output goes
    "corrupt": _corrupt,
    "nothing": lambda *_: None,
}


COMMANDS = {
    "train": train(steps=30),
    "train, printing": train("PRINTS", steps=30),
    _TWO: train("SLOW", "--nproc_per_node", "2", "--rank_timeout", "10", steps=30),
    "train, compiled": train("SLOW", "--compiler-opt", steps=30),
    "compare": compare("SLOW", "--rank_timeout", "10"),
    "run a notebook": EVERY["run a notebook"],
    "run a script on two processes": EVERY["run a script on two processes"],
    "make images": data("mock_imagenet.py"),
    "make text": data("text.py"),
    "show": EVERY["show"],
}
# How often these are drawn in relation to others, which have 1.
_OFTEN = {_TWO: 3, "kill one": 2}


def _drawn(chosen: random.Random, names: Iterable[str]) -> str:
    return chosen.choice([name for name in names for _ in range(_OFTEN.get(name, 1))])


def one(chosen: random.Random, folder: Path, cache: Path, planted: str | None) -> Try:
    """Draw a command, a moment and a fault, and return what came of them in `said`."""
    name, fault = _drawn(chosen, COMMANDS), _drawn(chosen, FAULTS)
    done = Try(
        name,
        fault,
        chosen.choice([chosen.uniform(0, 3), chosen.uniform(0, 25)]),
        chosen.choice([None, None, *_RESULTS]),
    )
    workspace = Workspace(folder, cache)
    folder.mkdir(parents=True)
    if planted:
        path = os.pathsep.join([str(Path(__file__).with_name("planted")), search_path()])
        workspace.environment |= {"GALLERY_FAULTS_PLANTED": planted, "PYTHONPATH": path}
    output = "head" if fault == "close" else "file"
    with started(COMMANDS[name](workspace), workspace, output) as command:
        if done.file:
            done.moment /= 10
            command.wait_until(lambda: _is_there(folder, str(done.file)), 30)
        command.wait_until(lambda: False, done.moment)
        if command.process.poll() is None:
            FAULTS[fault](chosen, command, done)
        done.said = _judge(command, done)
    return done


def _is_there(folder: Path, name: str) -> bool:
    """Return whether a file of that name is anywhere in the folder, which changes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder.rglob(name))
    return False


def _judge(command: Command, done: Try) -> list[str]:
    """Return what is wrong once the command has ended."""
    took = command.ended_after(
        {"signal": _END_SECONDS, "kill": _KILLED_SECONDS}.get(done.fault, _LIMIT_SECONDS)
    )
    if took is None:
        left = [" ".join(process.cmdline())[:80] for process in command.everything()]
        return [f"still there: {left}"]
    code, text = command.process.returncode, _OF_PYTHONS_TRACKER.sub("", command.stderr())
    by_signal = (-signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM, 141)
    # A batch says in its summary, on standard output, what became of its notebooks, or of its one.
    summary = re.search(
        r"^(\d+ of \d+ passed; .+|\S+: (not run|failed|timeout|kernel died).*)$",
        command.stdout(),
        re.MULTILINE,
    )
    silent = code not in (0, *by_signal) and not text.strip() and not summary
    length = len(message_of(text))
    blamed = re.search(r"rank (\d+) \(process \d+\) was killed", text)
    rank = int(blamed[1]) if blamed and done.blamed is not None else done.blamed
    trained = code == 0 and done.command.startswith("train") and done.fault != "close"
    faults = {
        f"open ports: {command.open_ports}": bool(command.open_ports),
        "a traceback: " + text[-1500:]: "Traceback (most recent call last)" in text,
        f"exit code {code} without a word": silent,
        f"a message of {length} lines": length > _MESSAGE_LINES,
        f"rank {done.blamed} was killed, and rank {rank} is blamed": rank != done.blamed,
        "exit code 0 and no results": trained
        and not any(command.workspace.folder.rglob("results.json")),
    }
    said = [fault for fault, is_so in faults.items() if is_so]
    written = [path for path in command.workspace.folder.rglob("*.json") if path.name in _RESULTS]
    for path in written:
        try:
            json.loads(path.read_text())
        except ValueError:
            said.append(f"{path.name} is half written")
    return said


def _search(seed: int, seconds: float, planted: str | None) -> tuple[Counter[str], int]:
    """Return how often each fault was caused, and the breaches: the planted one, or any."""
    chosen, counts, breaches = random.Random(seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="chaos-") as root:
        cache = Path(root) / "cache"
        shutil.copytree(ROOT / ".cache" / "data", cache / "data")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (planted and breaches):
            number = counts.total()
            done = one(chosen, Path(root) / f"try-{number}", cache, planted)
            counts[done.fault] += 1
            if done.said:
                told, where = "; ".join(done.said), f" of {done.file}" if done.file else ""
                breaches += planted is None or BREACHES[planted][2] in told
                print(
                    f"BREACH in try {number}: {done.command}, {done.fault} after "
                    f"{done.moment:.1f} s{where}: {told}",
                    flush=True,
                )
            shutil.rmtree(Path(root) / f"try-{number}", ignore_errors=True)
    return counts, breaches


def main(minutes: float, seed: int | None, planted: list[str] | None) -> int:
    """Run chaos and return the exit code: 1 for a breach, or for a planted one not found."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"seed {seed}", flush=True)
    if planted is None:
        counts, breaches = _search(seed, 60 * minutes, None)
        listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        print(f"{counts.total()} tries, {breaches} breaches; {listed}")
        return bool(breaches)
    lost = False
    for name in planted or BREACHES:
        began = time.monotonic()
        counts, breaches = _search(seed, 60 * minutes, name)
        found = f"found after {time.monotonic() - began:.0f} s, {counts.total()} tries"
        print(f"{name}: {found if breaches else f'NOT FOUND in {minutes:g} minutes'}", flush=True)
        lost = lost or not breaches
    return lost
