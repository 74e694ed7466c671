"""Rows for values that are refused before anything is started or written."""

from __future__ import annotations

from collections.abc import Iterator

from .driver import Row
from .preparations import bad_task, file_as_run_dir, foreign_run_dir
from .workspace import ROOT, TASKS, python

_TRAIN_WORDS = ["--model", f"{TASKS}:SLOW", "--max_steps", "3", "--no-evaluate"]


def _wrong_value(
    name: str, *words: str, says: str, quick: bool = False, prepare: object = None
) -> Row:
    """Return a row for a value that is refused before anything is started or written."""
    command = [str(ROOT / "launch_single_task.py"), *_TRAIN_WORDS, *words]
    return Row(
        "folders and values",
        name,
        lambda workspace: python(
            *(word.replace("{folder}", str(workspace.folder)) for word in command)
        ),
        codes=(2,),
        says=says,
        seconds=30,
        absent=("results.json", "config.json"),
        prepare=prepare,  # type: ignore[arg-type]
        quick=quick,
    )


def wrong_values() -> Iterator[Row]:
    yield _wrong_value(
        "an empty run_dir", "--run_dir=", says="run_dir='' must not be empty", quick=True
    )
    yield _wrong_value("run_dir is /", "--run_dir=/", says="holds files of something else")
    yield _wrong_value("run_dir is a home", "--run_dir=~", says="run_dir=~")
    yield _wrong_value("run_dir begins with dashes", "--run_dir=--x", says="begins with a dash")
    yield _wrong_value(
        "run_dir is a file", "--run_dir={folder}/run", says="is a file", prepare=file_as_run_dir
    )
    yield _wrong_value(
        "run_dir has a name too long", "--run_dir={folder}/" + "x" * 300, says="name too long"
    )
    yield _wrong_value(
        "run_dir holds files of others",
        "--run_dir={folder}/run",
        says="thesis.tex",
        prepare=foreign_run_dir,
        quick=True,
    )
    yield _wrong_value("an empty data_dir", "--data_dir=", says="data_dir='' must not be empty")
    yield _wrong_value(
        "a blank master_addr", "--master_addr= ", says="master_addr=' ' must not be empty"
    )
    for name, value in {
        "lr": "inf",
        "weight_decay": "nan",
        "max_grad_norm": "inf",
        "rank_timeout": "inf",
        "seed": str(2**63 - 1),
        "workers": "1000",
        "threads": "100000",
        "batch_size": "1000000000",
    }.items():
        yield _wrong_value(
            f"{name} is {value}",
            f"--{name}={value}",
            says=f"{name}='{value}' must be",
            quick=name in ("lr", "seed"),
        )
    for name, text in {
        "a syntax error": "TASK = (",
        "an exception": "1 / 0",
        "an exit": "import sys; sys.exit(5)",
    }.items():
        yield _wrong_value(
            f"a task file with {name}",
            "--model={folder}/task.py:TASK",
            says="task.py",
            prepare=bad_task(text),
        )
    yield Row(
        "folders and values",
        "prepare.sh --run ''",
        lambda workspace: ["bash", str(ROOT / "prepare.sh"), "--run", ""],
        codes=(2,),
        says="--run '': no such notebook",
        quick=True,
    )
