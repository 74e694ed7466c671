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
from .driver import message_of
from .planted.sitecustomize import BREACHES, SEEN_AS
from .workspace import ROOT, Command, Workspace, started, workers

_LIMIT_SECONDS = 240.0
"""Limit for a command with everything that befalls it; the longest takes a third of that alone."""
_KILLED_SECONDS = 10.0
"""Limit for the end of all processes, once the command was killed.

The shortest command would have ended by itself a little later.
"""
_MESSAGE_LINES = 40
_OF_PYTHONS_TRACKER = re.compile(
    r"Traceback \(most recent call last\):\n  File \"[^\"]*resource_tracker\.py\".*\n"
    r"(?:    .*\n)+KeyError: .*\n"
)
"""What Python says when its resource tracker was killed and started anew; nothing is lost."""
_RESULTS = ("config.json", "steps.jsonl", "results.json", "comparison.json", "report.json")

END_SECONDS = 45.0
"""Limit for the end of all processes, once the command was told to end."""


@dataclass
class Try:
    """One command, what befell it, and what was wrong."""

    command: str
    fault: str
    moment: float
    """Seconds from the start of the command or, with `file`, from when that file is there."""
    file: str | None = None
    said: list[str] = field(default_factory=list)
    blamed: int | None = None  # the rank that was killed


def _kill_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Kill any process of the command but the command itself.

    Of two ranks it is known which must be blamed.
    """
    with contextlib.suppress(psutil.Error, IndexError, ProcessLookupError, ValueError):
        watched = done.command == "train, two processes" and command.wait_until(
            lambda: command.workspace.steps() > 0, END_SECONDS
        )
        ranks = workers(command) if watched else []
        if len(ranks) == 2:
            done.blamed = chosen.randrange(2)
            ranks[done.blamed].kill()
            return
        others = [process for process in command.everything() if process.pid != command.process.pid]
        chosen.choice(others).kill()


def _stop_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Suspend a process that trains.

    Where it is alone, it goes on after 3 seconds. Of two ranks, it stands still for good.
    """
    with contextlib.suppress(psutil.Error, IndexError, ProcessLookupError, ValueError):
        command.wait_until(lambda: command.workspace.steps() > 0, END_SECONDS)
        process = chosen.choice(workers(command))
        process.suspend()
        if not done.command.startswith("train, two"):  # the one whose ranks watch one another
            time.sleep(3)
            process.resume()


def _corrupt(chosen: random.Random, command: Command, done: Try) -> None:
    """Cut or overwrite a file of the cache, but for its data."""
    with contextlib.suppress(OSError, IndexError):
        files = [
            path
            for path in command.workspace.cache.rglob("*")
            if path.is_file() and "data" not in path.parts
        ]
        path = chosen.choice(files)
        if chosen.random() < 0.5:
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(os.urandom(300))


Fault = Callable[[random.Random, Command, Try], None]
FAULTS: dict[str, Fault] = {
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
    "train, two processes": train(
        "SLOW", "--nproc_per_node", "2", "--rank_timeout", "10", steps=30
    ),
    "train, compiled": train("SLOW", "--compiler-opt", steps=30),
    "compare": compare("SLOW", "--rank_timeout", "10"),
    "run a notebook": EVERY["run a notebook"],
    "run a script on two processes": EVERY["run a script on two processes"],
    "make images": data("mock_imagenet.py"),
    "make text": data("text.py"),
    "show": EVERY["show"],
}
_OFTEN = {"train, two processes": 3, "kill one": 2}
"""How often these are drawn in relation to others, which have 1."""


def _drawn(chosen: random.Random, names: Iterable[str]) -> str:
    return chosen.choice([name for name in names for _ in range(_OFTEN.get(name, 1))])


def one(chosen: random.Random, folder: Path, cache: Path, planted: str | None) -> Try:
    """Draw a command, a moment and a fault, and return what came of them.

    `said` is empty when nothing was wrong.
    """
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
        _befall(chosen, command, done)
        _judge(command, done)
    return done


def _befall(chosen: random.Random, command: Command, done: Try) -> None:
    if done.file:
        done.moment /= 10
        command.wait_until(lambda: _is_there(command.workspace.folder, str(done.file)), 30)
    command.wait_until(lambda: False, done.moment)
    if command.process.poll() is None:
        FAULTS[done.fault](chosen, command, done)


def _is_there(folder: Path, name: str) -> bool:
    """Return whether a file of that name is anywhere in the folder, which changes meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return any(folder.rglob(name))
    return False


def _judge(command: Command, done: Try) -> None:
    took = command.ended_after(
        {"signal": END_SECONDS, "kill": _KILLED_SECONDS}.get(done.fault, _LIMIT_SECONDS)
    )
    say = done.said.append
    if took is None:
        say(
            f"still there: {[' '.join(process.cmdline())[:80] for process in command.everything()]}"
        )
        return
    code, text = command.process.returncode, _OF_PYTHONS_TRACKER.sub("", command.text())
    if command.open_ports:
        say(f"open ports: {command.open_ports}")
    if "Traceback (most recent call last)" in text:
        say("a traceback: " + text[-1500:])
    ended_by_signal = (-signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM, 141)
    # A batch says in its summary, on standard output, what became of its notebooks, or of its one.
    summary = re.search(
        r"^(\d+ of \d+ passed; .+|\S+: (not run|failed|timeout|kernel died).*)$",
        command.result(),
        re.MULTILINE,
    )
    if code not in (0, *ended_by_signal) and not text.strip() and not summary:
        say(f"exit code {code} without a word")
    if len(message_of(text)) > _MESSAGE_LINES:
        say(f"a message of {len(message_of(text))} lines")
    if (
        done.blamed is not None
        and (found := re.search(r"rank (\d+) \(process \d+\) was killed", text))
        and int(found[1]) != done.blamed
    ):
        say(f"rank {done.blamed} was killed, and rank {found[1]} is blamed")
    for path in command.workspace.folder.rglob("*.json"):
        if path.name in _RESULTS:
            try:
                json.loads(path.read_text())
            except ValueError:
                say(f"{path.name} is half written")
    finished = any(command.workspace.folder.rglob("results.json"))
    if code == 0 and done.command.startswith("train") and not finished and done.fault != "close":
        say("exit code 0 and no results")


def _search(seed: int, seconds: float, planted: str | None) -> tuple[Counter[str], list[Try]]:
    chosen, counts, breaches = random.Random(seed), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="chaos-") as root:
        cache = Path(root) / "cache"
        shutil.copytree(ROOT / ".cache" / "data", cache / "data")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            number = sum(counts.values())
            done = one(chosen, Path(root) / f"try-{number}", cache, planted)
            counts[done.fault] += 1
            if done.said:
                told, where = "; ".join(done.said), f" of {done.file}" if done.file else ""
                if planted is None or SEEN_AS[planted] in told:
                    breaches.append(done)
                print(
                    f"BREACH in try {number}: {done.command}, {done.fault} after "
                    f"{done.moment:.1f} s{where}: {told}",
                    flush=True,
                )
                if planted and breaches:
                    break
            shutil.rmtree(Path(root) / f"try-{number}", ignore_errors=True)
    return counts, breaches


def main(minutes: float, seed: int | None, planted: list[str] | None) -> int:
    """Run chaos and return the exit code.

    The code is 1 for a breach, or for a planted breach that was not found.
    """
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    print(f"seed {seed}", flush=True)
    if planted is None:
        counts, breaches = _search(seed, 60 * minutes, None)
        print(
            f"{sum(counts.values())} tries, {len(breaches)} breaches; "
            + ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        )
        return bool(breaches)
    lost = []
    for name in planted or BREACHES:
        began = time.monotonic()
        counts, breaches = _search(seed, 60 * minutes, name)
        found = (
            f"found after {time.monotonic() - began:.0f} s, {sum(counts.values())} tries"
            if breaches
            else f"NOT FOUND in {minutes:g} minutes"
        )
        print(f"{name}: {found}", flush=True)
        lost += [] if breaches else [name]
    return bool(lost)
