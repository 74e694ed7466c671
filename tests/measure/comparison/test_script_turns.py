"""Scripts take turns unchanged; one at a time computes, and none is left when it ends.

The scripts under test do nothing but sleep and log.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from refusal import refused
from worker_processes import wait_until

from gallery_lib.errors import Interrupted, RunFailed
from gallery_lib.measure.comparison import script_turns
from gallery_lib.measure.comparison.script_turns import Script, ScriptTurns

FAKE = """
import os, sys, time

name, seconds, loss, log = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
epoch_lines, child, end = {epoch_lines}, {child}, {end!r}

def note():
    with open(log, "a") as file:
        file.write(name + "\\n")

if child and os.fork() == 0:
    while True:
        note()
        time.sleep(0.01)
for number in range(1_000_000):
    start = time.time()
    epoch, step = divmod(number, epoch_lines)
    time.sleep(seconds if step or not number else seconds + 0.5)
    note()
    place = f"Epoch: {{epoch}}, Step: {{step + 1}}, Loss: {{loss}}"
    print(f"{{place}}, Throughputs: {{1 / (time.time() - start):.4f}} samples/s")
    if number == 4:
        exec(end)
"""
PATIENCE_SECONDS = 60.0


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Script]:
    """Return script("a", 0.02), which makes a script that logs a line every 0.02 seconds.

    The first line of each epoch but the first takes 0.5 seconds more. A `child` process notes the
    name as well. It runs `end` after its fifth line.
    """

    def make(
        name: str,
        seconds: float = 0.02,
        *,
        loss: str = "4.6000",
        epoch_lines: int = 1_000_000,
        child: bool = False,
        end: str = "",
        starts_like: str | None = None,
    ) -> Script:
        path = tmp_path / f"{name}.py"
        path.write_text(FAKE.format(epoch_lines=epoch_lines, child=child, end=end))
        arguments = [name, str(seconds), loss, str(tmp_path / "log.txt")]
        return Script(path, arguments, "as told", starts_like=starts_like, tolerance=0.01)

    return make


@pytest.fixture
def compare(tmp_path: Path) -> Iterator[Callable[..., ScriptTurns]]:
    """Return compare(*scripts, rounds=…), after which no process of a script may be left."""

    def run(*scripts: Script, rounds: int = 2, lines: int = 2, **options: object) -> ScriptTurns:
        options = {"patience_seconds": PATIENCE_SECONDS, "say": lambda line: None, **options}
        by_name = {script.path.stem: script for script in scripts}
        return script_turns.compare(by_name, rounds=rounds, lines=lines, **options)  # type: ignore[arg-type]

    yield run
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that run a script of the folder, also under a supervisor."""
    return [  # a zombie has no command line
        process
        for process in psutil.process_iter(["cmdline"])
        if any(f"{folder}/" in word for word in process.info["cmdline"] or [])
    ]


def test_the_ratio_is_that_of_what_the_scripts_log(compare, script) -> None:
    turns = compare(script("slow", 0.09), script("fast", 0.03, starts_like="slow"), rounds=4)
    ratio = turns.ratio("fast")
    assert ratio is not None and ratio.verdict == "faster" and 1.5 < ratio.ratio < 6
    assert len(turns.rounds["slow"]) == 4 and turns.first_losses == {"slow": 4.6, "fast": 4.6}
    # A line with a pause in it would tell of the turn of another script.
    assert all(len(turn) == 2 for turn in turns.rounds["fast"])
    assert turns.samples_per_second("fast") > 1 / (0.03 + 2 * 0.09)


def test_one_script_at_a_time_computes_with_its_children(compare, script, tmp_path: Path) -> None:
    compare(script("a", child=True), script("b", child=True), rounds=3)
    names = [name for name, _ in itertools.groupby((tmp_path / "log.txt").read_text().split())]
    # a and b become warm; then a b, b a, a b
    assert names == ["a", "b", "a", "b", "a", "b"]


def test_a_script_with_another_first_loss_gets_a_reason_instead_of_a_ratio(compare, script) -> None:
    turns = compare(script("a"), script("b", loss="4.7000", starts_like="a"), script("c"))
    assert turns.ratio("b") is None
    assert turns.parity("b") == (False, "NO: first loss 2.17% from a's; at most 1.0%")
    assert turns.ratio("c") is not None and turns.parity("c")[1].startswith("not checked")
    turns = compare(script("a", loss="nan"), script("b"))
    assert turns.ratio("b") is None and "not finite (4.6; a: nan)" in turns.parity("b")[1]


def test_the_first_line_of_an_epoch_does_not_count(compare, script) -> None:
    turns = compare(script("a", epoch_lines=3), script("b", epoch_lines=3))
    rates = [rate for name in "ab" for turn in turns.rounds[name] for rate in turn]
    assert min(rates) > 1 / 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "end", "message"),
    [
        (0, "raise ValueError('planted')", r"exit code 1 .*Epoch: 0.*ValueError: planted"),
        (1, "sys.exit(0)", r"exit code 0 before its turns were over"),
        (0, "os.kill(os.getpid(), 9)", r"exit code 137"),
        (1, "print('it waits'); time.sleep(1000)", r"nothing for 5 s.*it waits"),
    ],
)
def test_a_script_that_fails_or_hangs_is_named_with_its_last_lines(
    compare, script, number: int, end: str, message: str
) -> None:
    scripts = [script(name, end=end if name == "ab"[number] else "") for name in "ab"]
    with pytest.raises(RunFailed, match=rf"(?s){'ab'[number]}\.py.*{message}"):
        compare(*scripts, rounds=10, patience_seconds=5.0)


def test_an_interrupt_ends_all_scripts(compare, script) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("round 1"):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="comparison in turns was stopped"):
        compare(script("a", child=True), script("b", child=True), say=interrupt)


def test_a_missing_script_starts_nothing(compare, script, tmp_path: Path) -> None:
    with refused("script", tmp_path / "none.py"):
        compare(script("a"), Script(tmp_path / "none.py", [], "missing"))


OWNER = """
from pathlib import Path
from gallery_lib.measure.comparison import script_turns
from gallery_lib.measure.comparison.script_turns import Script

scripts = {{path.stem: Script(path, [path.stem, "0.02", "1.0", "{log}"], "as told")
           for path in [Path("{folder}/a.py"), Path("{folder}/b.py")]}}
script_turns.compare(scripts, rounds=1000, lines=2, say=lambda line: print(line, flush=True))
"""


@pytest.mark.slow
def test_paused_scripts_end_with_a_killed_kernel(script, tmp_path: Path, checkout: Path) -> None:
    for name in "ab":
        script(name, child=True)
    source = OWNER.format(folder=tmp_path, log=tmp_path / "log.txt")
    words = [sys.executable, "-c", source]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        next(line for line in owner.stdout or () if line.startswith("round 2 "))
        assert len(processes_of(tmp_path)) >= 4
        owner.kill()
    wait_until(lambda: processes_of(tmp_path) == [])
