"""Training of tasks for two steps, in each process of torchrun: `two_processes.py FOLDER TASK …`.

One start of the processes serves all tasks, one after another. A task that fails leaves no results,
and the ones behind it are tried too.
"""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

import without_dropout
from made_up_text import documents
from small_tasks import SMALL

from gallery_lib.config import TrainConfig
from gallery_lib.data import text
from gallery_lib.system.processes import die_with_parent
from gallery_lib.train.loop import train


def prepare(folder: Path) -> Path:
    """Write a text for the language models into `folder`, and return the folder.

    The text is the same under every Python; the default text is from Python's own library.
    """
    (folder / "text").mkdir()
    (folder / "text" / "all.txt").write_text("\n\n".join(documents(count=8)))
    text.prepare(folder / "text", folder / "tokens")
    return folder


def config(name: str, folder: Path) -> TrainConfig:
    """Return the options for two steps of the task `name` at its small size.

    `folder` is one that `prepare` has seen.
    """
    model = f"{Path(without_dropout.__file__)}:{name}"
    return TrainConfig(
        model=model,
        amp_level="O0",
        seed=1,
        max_steps=2,
        log_interval=1,
        workers=0,
        evaluate=False,
        run_dir=str(folder / name),
        data_dir=str(folder / "tokens") if name.startswith("hf_") else None,
        **SMALL[name],
    )


if __name__ == "__main__":
    die_with_parent()
    for name in sys.argv[2:]:
        try:
            threads = [thread.name for thread in threading.enumerate()]
            # The heartbeat of the run before would keep its store, and look after ranks that left.
            assert not [name for name in threads if name.endswith("(_beat)")]
            train(config(name, Path(sys.argv[1])))
        except Exception:
            traceback.print_exc()
