"""Try the scripts of `scripts/`, and write the page of what was found.

python -m tests.trial                        every script, and docs/guides/tried_scripts.md
python -m tests.trial mnist_loop gan         these, and no page
python -m tests.trial --same 200 accumulation   the plain form against itself, so often
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.system.hardware import describe

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
PROCESSES = {"ddp_torchrun": 2}
PAGE = ROOT / "docs" / "guides" / "tried_scripts.md"
_HEAD = """\
# Scripts that `gallery try` was tried on

Written for this page in the styles of the field, and run unmodified, as
`gallery try tests/trial/scripts/NAME.py`. `python -m tests.trial` writes the page anew.

"""


def tried(name: str, *options: str) -> dict[str, Any] | str:
    """Try one script; return the trial, or the message with which it was refused."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = [sys.executable, "-m", "gallery_lib", "try", f"--json={out}", *options]
        command += [f"--nproc={PROCESSES.get(name, 1)}", f"{name}.py"]
        done = subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.splitlines()[-1]
        print(done.stdout.splitlines()[0], flush=True)
        trial: dict[str, Any] = json.loads(out.read_text())
        return trial


def _row(name: str, trial: dict[str, Any] | str) -> str:
    head = (
        f"| `{name}` | {SCRIPTS.joinpath(name + '.py').read_text().splitlines()[0].strip(chr(34))}"
    )
    if isinstance(trial, str):
        return f"{head} | refused: {trial} | | |"
    ratio = trial["ratio"]
    text = "none"
    if ratio:
        text = f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
    found = " ".join(trial["findings"]) or "nothing stands out"
    return f"{head} | {text} | {trial['parity']['why']} | {found} | {trial['seconds'] / 60:.1f} |"


def _write(trials: dict[str, dict[str, Any] | str]) -> None:
    table = [
        "| script | style | ratio (99 % interval) | parity | found | minutes |",
        "|---|---|---|---|---|---|",
    ]
    table += [_row(name, trial) for name, trial in trials.items()]
    machines = {describe(t["environment"]) for t in trials.values() if isinstance(t, dict)}
    table += ["", f"Measured on {', '.join(sorted(machines))}."]
    PAGE.write_text(_HEAD + "\n".join(table) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the arguments name; exit code 1: more than one false alarm in a hundred."""
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--same", type=int, default=0, metavar="TIMES")
    options = parser.parse_args(arguments)
    names = options.names or sorted(path.stem for path in SCRIPTS.glob("*.py"))
    if options.same:
        alarms = 0
        for number in range(options.same):
            trial = tried(names[number % len(names)], "--without=all")
            assert isinstance(trial, dict), trial
            ratio = trial["ratio"]
            assert ratio is not None, trial["parity"]["why"]
            alarms += not ratio["low"] <= 1 <= ratio["high"]
        print(f"{alarms} of {options.same} trials of the same form see a difference")
        return alarms > options.same / 100
    trials = {}
    for name in names:
        trials[name] = found = tried(name)
        print(f"{name}: {found if isinstance(found, str) else found['parity']['why']}", flush=True)
    if not options.names:
        _write(trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
