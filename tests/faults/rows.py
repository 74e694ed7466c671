"""Table of faults: how each is caused, and what must be seen."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from gallery_lib.checkpoint import folders, state
from gallery_lib.errors import InputError

from . import causes
from .causes import Prepare, damaged, results, send, to_loader, to_rank, with_file
from .commands import (
    EVERY,
    Words,
    batch,
    compare,
    data,
    foreign,
    half,
    on,
    python,
    train,
)
from .driver import Row, after, wait_for_steps
from .workspace import ROOT, TASKS, Command, Workspace, started

INTERRUPTED, TERMINATED = (130, -signal.SIGINT), (143, -signal.SIGTERM)


def _network() -> Iterator[Row]:
    kind = "open to the network"
    for name, words in EVERY.items():
        one = f"{name}: no port"
        yield Row(kind, one, words, seconds=300, lines=99, codes=(0, 1), quick=name == "train")
    name = "strangers where turns are handed out"
    yield Row(kind, name, compare(), causes.strangers, seconds=300, says="same training")


def _divergence() -> Iterator[Row]:
    kind, on_words = "a run that diverged", "--no-terminate-on-nan"
    yield Row(
        *(kind, "training", train("DIVERGES", steps=20)),
        codes=(1,),
        says="its loss is no finite number from step 5 on rank 0 on",
        check=causes.diverged_at_5,
        quick=True,
    )
    yield Row(
        *(kind, "training that goes on", train("DIVERGES", on_words, steps=20)),
        check=causes.diverged_at_5,
    )
    for name, task in {"accelerated only": "DIVERGES_ACCELERATED", "both": "DIVERGES"}.items():
        yield Row(
            *(kind, f"a comparison, {name}", compare(task)),
            codes=(0, 1),
            says="not comparable",
            check=causes.no_ratio,
            seconds=300,
        )


def _outputs() -> Iterator[Row]:
    kind = "output that cannot be written"
    commands = {"train": train(steps=6), "compare": compare(), "list": EVERY["list"]}
    for output, codes in {"head": (0, 141), "full": (1,), "closed": (0,)}.items():
        for name, words in commands.items():
            yield Row(
                *(kind, f"{name}, {output}", words),
                codes=codes,
                output=output,
                seconds=300 if name == "compare" else 60,
                quick=(name, output) == ("train", "head"),
            )
    yield Row(*(kind, "bytes that are no text", train("PRINTS", steps=6)), there=("results.json",))
    yield Row(kind, "show, LC_ALL=C and latin-1", EVERY["show"], prepare=causes.latin)


def _signals() -> Iterator[Row]:
    for number, codes in {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}.items():
        yield Row(
            *("signals", f"{number.name} in training", train()),
            wait_for_steps(3, send(number)),
            codes,
            seconds=12,
            quick=True,
        )
        for name in ("compare", "run a notebook", "make images", "train on two processes"):
            yield Row(
                *("signals", f"{number.name} after 4 s: {name}", EVERY[name]),
                after(4.0, send(number)),
                # A batch says by its report which signal it was.
                (*codes, 0, *(INTERRUPTED if name == "run a notebook" else ())),
                seconds=15,
            )
    for number in (signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT):
        yield Row(
            *("signals", f"{number.name} in training", train()),
            wait_for_steps(3, send(number)),
            (-number,),
            seconds=15,
            lines=99,
        )
    name = "run a script on two processes"
    yield Row(
        *("signals", "a script on two processes is interrupted", EVERY[name]),
        after(6.0, send(signal.SIGINT)),
        (1, 130, -2),
        lines=99,
    )


def _who_failed() -> Iterator[Row]:
    kind, two = "who failed", train("SLOW", "--nproc_per_node", "2", steps=400)
    for rank in (0, 1):
        yield Row(
            *(kind, f"rank {rank} is killed", two),
            wait_for_steps(3, to_rank(rank, signal.SIGKILL)),
            (1,),
            f"rank {rank} (process",
            seconds=10,
        )
    yield Row(
        *(kind, "a process that loads data is killed", train("SLOW", steps=400)),
        wait_for_steps(3, to_loader(signal.SIGKILL)),
        (1,),
        "DataLoader worker",
        seconds=15,
    )
    name = "a rank is killed while it waits for the others to end"
    yield Row(
        *(kind, name, train("SLOW", "--nproc_per_node", "2", steps=8)),
        causes.once_there_are_results(to_rank(1, signal.SIGKILL)),
        (0, 1),
        seconds=20,
    )
    limited = ("--rank_timeout", "8")
    yield Row(
        *(kind, "a rank is stopped", train("SLOW", "--nproc_per_node", "2", *limited, steps=400)),
        wait_for_steps(3, to_rank(1, signal.SIGSTOP)),
        (1,),
        "rank 1 gives no sign of life",
        seconds=25,
    )
    for processes in ("1", "2"):
        name = f"a process that loads data is stopped, of {processes} rank(s)"
        yield Row(
            *(kind, name, train("SLOW", "--nproc_per_node", processes, *limited, steps=400)),
            wait_for_steps(3, to_loader(signal.SIGSTOP)),
            (1,),
            "DataLoader timed out after 8 seconds",
            seconds=25,
            quick=processes == "1",
        )
    yield Row(
        *(kind, "papermill is killed", batch()),
        after(8.0, causes.to_papermill),
        (1,),
        "SIGKILL",
        seconds=20,
        lines=30,
    )


def _limits() -> Iterator[Row]:
    def within(blocks: int) -> Words:
        words = train("SLOW", "--workers", "0")
        shell = ["bash", "-c", f'ulimit -f {blocks}; exec "$@"', "bash"]
        return lambda workspace: [*shell, *words(workspace)]

    yield Row(
        *("limits", "ulimit -f 8", within(8)),
        says="cannot be written to",
        there=("results.json",),
        quick=True,
    )
    yield Row(
        *("limits", "ulimit -f 4", within(4)),
        codes=(1,),
        says="its results could not be written and are lost",
    )


def _caches() -> Iterator[Row]:
    compiled = train("SLOW", "--compiler-opt", steps=6)
    for name, prepare, words, says in (
        (
            "files of the compiler are damaged",
            damaged("inductor/**/*", lambda file: file.write_bytes(os.urandom(200))),
            compiled,
            "is made anew",
        ),
        (
            "C++ of ours is cut off",
            damaged("cpu_kernels/*.so", lambda file: os.truncate(file, file.stat().st_size // 2)),
            compiled,
            "",
        ),
        (
            "a reference is another's",
            damaged("references/*.pt", causes.flip),
            compare(),
            "same training",
        ),
    ):
        there = ("*.damaged", "results.json")
        yield Row(
            *("caches", name, words),
            says=says,
            prepare=prepare,
            seconds=300,
            lines=20,
            there=there,
        )
    yield Row(
        *("caches", "others may write into the compiler's", compiled),
        prepare=causes.open_to_others,
        codes=(2,),
        says="chmod -R go-w",
    )


def _files_of_others() -> Iterator[Row]:
    kind = "files of others"
    source = (
        "import json, os, pathlib\n"
        "folder = pathlib.Path(os.environ['GALLERY_RUNS_DIR']) / 'mine'\n"
        "folder.mkdir(parents=True)\n"
    )
    for name, words, says in (
        ("a comparison cut in half", on(half, "show"), "is no JSON"),
        (
            "results.json of something else",
            on(foreign("results.json", [1, 2]), "show"),
            "results.json",
        ),
    ):
        yield Row(kind, name, words, codes=(2,), says=says, quick="results.json" not in name)
    yield Row(
        *(kind, "a notebook leaves half a comparison"),
        batch(f"{source}(folder / 'comparison.json').write_text('{{')"),
        codes=(1,),
        says="comparison that cannot be read",
        lines=30,
        there=("report.json",),
    )
    yield Row(
        *(kind, "a notebook's error has escape sequences"),
        batch("raise ValueError('\\x1b[31mred\\x1b]0;title\\x07 \\x00')"),
        codes=(1,),
        lines=30,
        check=causes.no_escapes,
    )
    checker = str(ROOT / "data_prep" / "check_imagenet.py")
    yield Row(
        *(kind, "a pipe among images"),
        lambda workspace: python(checker, str(workspace.folder / "images")),
        prepare=causes.fifo_among_images,
        says="a pipe",
    )
    yield Row(
        *(kind, "damaged text data", data("text.py")),
        prepare=causes.damaged_text,
        codes=(2,),
        says="is damaged",
    )


def _values() -> Iterator[Row]:
    """Yield rows for values that are refused before anything is started or written."""
    kind, folder = "folders and values", "{folder}"
    yield Row(
        *(kind, "two runs with one folder", train()),
        wait_for_steps(3, causes.two_runs),
        there=("results.json",),
        check=causes.second_refused,
        seconds=90,
    )
    start = [str(ROOT / "launch_single_task.py"), f"--model={TASKS}:SLOW", "--max_steps=3"]
    prepare: Prepare | None
    for name, word, says, prepare in (
        ("run_dir is /", "--run_dir=/", "holds files of something else", None),
        ("run_dir is a home", "--run_dir=~", "run_dir=~", None),
        ("run_dir is a file", f"--run_dir={folder}/run", "is a file", with_file("run", "mine")),
        (
            "run_dir holds files of others",
            f"--run_dir={folder}/run",
            "thesis.tex",
            with_file("run/thesis.tex", "precious"),
        ),
        ("lr is inf", "--lr=inf", "lr='inf' must be", None),
        ("seed is 2**63 - 1", f"--seed={2**63 - 1}", f"seed='{2**63 - 1}' must be", None),
        (
            "a task file with an exit",
            f"--model={folder}/task.py:TASK",
            "task.py",
            with_file("task.py", "import sys; sys.exit(5)"),
        ),
    ):

        def words(workspace: Workspace, word: str = word) -> list[str]:
            return python(*start, word.replace(folder, str(workspace.folder)))

        yield Row(
            *(kind, name, words),
            codes=(2,),
            says=says,
            seconds=30,
            absent=("results.json", "config.json"),
            prepare=prepare,
            quick=name in ("run_dir holds files of others", "lr is inf"),
        )
    yield Row(
        *(kind, "prepare.sh --run ''"),
        lambda workspace: ["bash", str(ROOT / "prepare.sh"), "--run", ""],
        codes=(2,),
        says="--run '': no such notebook",
        quick=True,
    )


# --------------------------------------------------------------------------------------------------
# Checkpoints: what cannot be written, what is damaged, and a kill in a write.


_FIRST, _SECOND = "step-00000010.pt", "step-00000020.pt"


def _saving(*more: str, steps: int = 30) -> Words:
    return train("SLOW", "--checkpoint_every", "10", *more, steps=steps)


def _checkpoints(workspace: Workspace) -> Path:
    return workspace.folder / "run" / folders.CHECKPOINTS


def _whole(folder: Path, *names: str) -> str:
    """Return what is wrong with the checkpoints of these names, or ""; nothing else may be left."""
    if left := [path.name for path in folder.glob(".*.tmp")]:
        return f"{left} is left"
    try:
        for name in names:
            state.read(folder / name)
    except (InputError, OSError) as error:
        return str(error)
    return ""


def _on_small_disk(words: Words) -> Words:
    """Return the command with its checkpoints on a disk that is full after the first of them.

    The disk is one of a mount namespace, so it is gone with the command. Its checkpoints are copied
    to the folder `seen`.
    """
    script = (
        "mkdir -p run/checkpoints && mount -t tmpfs -o size=4m faults run/checkpoints || exit 99\n"
        f"(until [ -f run/checkpoints/{_FIRST} ]; do sleep 0.02; done\n"
        " head -c 100M /dev/zero > run/checkpoints/filled 2> /dev/null) &\n"
        '"$@"; code=$?; wait; cp -a run/checkpoints seen; exit $code'
    )
    own = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    return lambda workspace: [*own, *words(workspace)]


def _interrupted(workspace: Workspace) -> None:
    """Have a run in the workspace that has come to step 20 of 30, with two checkpoints."""
    with started(_saving(steps=20)(workspace), workspace) as command:
        command.ended_after(60)
    (workspace.folder / "run" / "results.json").unlink()


def _damaged_newest(workspace: Workspace) -> None:
    _interrupted(workspace)
    path = _checkpoints(workspace) / _SECOND
    os.truncate(path, path.stat().st_size // 2)


def _killed_in_a_write(workspace: Workspace) -> None:
    """Leave a run whose processes were killed while a checkpoint was written, after whole ones."""
    words = train("SLOW", "--checkpoint_every", "1", "--resume", "auto", steps=400)(workspace)
    folder = _checkpoints(workspace)
    for _ in range(10):
        with started(words, workspace) as command:
            command.wait_until(lambda: len(folders.newest_first(folder)) == 2)
            numbers = [process.pid for process in command.everything()]
            deadline = time.monotonic() + 30
            while not list(folder.glob(".step-*.tmp")) and time.monotonic() < deadline:
                time.sleep(0.001)
            for number in sorted(numbers, reverse=True):  # those that train were started last
                if psutil.pid_exists(number):
                    os.kill(number, signal.SIGKILL)
            command.ended_after(10)
        if list(folder.glob(".step-*.tmp")):
            return
    raise AssertionError("no kill came in the middle of a write")


def _gone_on(workspace: Workspace, command: Command) -> str:
    """Return what is wrong with a run that went on: unlike steps, or no word of it."""
    run_dir = workspace.folder / "run"
    steps = [json.loads(line)["step"] for line in (run_dir / "steps.jsonl").open()]
    if steps != list(range(1, len(steps) + 1)):
        return f"the log has the steps {steps}"
    if not results(workspace)["interruptions"]:
        return "results.json tells of no interruption"
    folder = _checkpoints(workspace)
    return _whole(folder, *(path.name for path in folders.newest_first(folder)))


def _checkpoint_rows() -> Iterator[Row]:
    kind = "checkpoints"
    yield Row(
        *(kind, "the disk is full while one is written", _on_small_disk(_saving())),
        says="step 20 could not be saved, and the training goes on: ",
        there=("results.json",),
        check=lambda workspace, command: (
            _whole(workspace.folder / "seen", _FIRST)
            or ("" if "No space left on device" in command.result() else "it gives no reason")
        ),
    )
    yield Row(
        *(kind, "the newest is damaged, and --resume=auto", _saving("--resume", "auto")),
        prepare=_damaged_newest,
        codes=(2,),
        says="Delete it to go on from the one before.",
        lines=1,
        absent=("results.json",),
        check=lambda workspace, command: _whole(_checkpoints(workspace), _FIRST),
        quick=True,
    )
    other = train("PRINTS", "--checkpoint_every", "10", "--resume", "auto", steps=30)
    yield Row(
        *(kind, "they are of another model", other),
        prepare=_interrupted,
        codes=(2,),
        says="is of another model",
        lines=1,
        absent=("results.json",),
        check=lambda workspace, command: _whole(_checkpoints(workspace), _FIRST, _SECOND),
    )
    yield Row(
        *(kind, "a run is killed while one is written, and goes on"),
        train("SLOW", "--checkpoint_every", "5", "--resume", "auto", steps=60),
        prepare=_killed_in_a_write,
        says="resumed  from",
        there=("results.json",),
        check=_gone_on,
        quick=True,
    )


ROWS = (
    *(*_network(), *_divergence(), *_outputs(), *_signals(), *_who_failed(), *_limits()),
    *(*_caches(), *_files_of_others(), *_values(), *_checkpoint_rows()),
)
