"""Count the files of the package that an option passes on its way.

    python -m tests.project.walks [train|compare|accelerate]

A file counts when one of its functions is given the option: as a word of the command line, in a
configuration or description of the run, or in a dictionary with its name. Below each file stand
these functions. All processes of a command count; each has a profiler from its start. In
`accelerate()` the files count that are given the model, loader, optimizer or configuration.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

CHECKOUT = Path(__file__).parents[2]
PACKAGE = str(CHECKOUT / "gallery_lib") + os.sep
FOLDER_VARIABLE, LAST_VARIABLE = "WALKS_FOLDER", "WALKS_LAST"
BATCH_SIZE = 7
"""Value of the option that is followed: no other one has it."""
TRAINING = ["--model=resnet18", f"--batch_size={BATCH_SIZE}", "--image_size=32", "--no-evaluate"]
WALKS = {
    "train": (
        "launch_single_task.py, to the first batch",
        ["launch_single_task.py", *TRAINING, "--max_steps=1"],
        "device_loader.py:__iter__ job.py:wait",
        15,
    ),
    "compare": (
        "gallery compare, to its verdict",
        ["-m", "gallery_lib", "compare", *TRAINING, "--rounds=4", "--block_steps=2"],
        "",
        20,
    ),
    "accelerate": (
        "accelerate()",
        ["-c", "from tests.project import walks; walks.accelerate_followed()"],
        "",
        20,
    ),
}
"""Walk → title, arguments of Python, functions at which it ends, files that are meant to be enough.
"""
_followed: list[Any] = []


def _carries(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        return f"--batch_size={BATCH_SIZE}" in value
    if any(value is one for one in _followed):
        return True
    if isinstance(value, list | tuple):
        return depth < 2 and any(_carries(part, depth + 1) for part in value[:50])
    if isinstance(value, dict):
        return value.get("batch_size") == BATCH_SIZE
    if type(value).__name__.endswith(("Config", "Run", "Plan")):
        parts = vars(value) if hasattr(value, "__dict__") else {}
        return parts.get("batch_size") == BATCH_SIZE or any(
            _carries(part, depth + 1) for part in parts.values() if depth < 2
        )
    return False


def follow() -> None:
    """Note in the folder of the environment which files are given the option, in this process."""
    folder, last = Path(os.environ[FOLDER_VARIABLE]), os.environ[LAST_VARIABLE].split()
    seen: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        name = code.co_filename.removeprefix(PACKAGE)
        if f"{Path(name).name}:{code.co_name}" in last:
            sys.setprofile(None)
        elif (name, code.co_name) not in seen and code.co_name != "<module>":
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
            given = [frame.f_locals[a] for a in arguments if a in frame.f_locals]
            if any(map(_carries, given)):
                seen.add((name, code.co_name))
                with (folder / name.replace(os.sep, "%")).open("a") as file:
                    file.write(f"{code.co_name}\n")

    sys.setprofile(profile)


def accelerate_followed() -> None:
    """Call `accelerate()`, and follow what it is given."""
    import torch

    from gallery_lib import Config, accelerate

    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH_SIZE)
    optimizer, config = torch.optim.AdamW(model.parameters()), Config()
    _followed.extend((model, loader, optimizer, config))
    accelerate(model, loader, optimizer, config)


def files_of(arguments: list[str], last: str) -> dict[str, list[str]]:
    """Run Python with these arguments; return the files on the walk with their functions."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder, "start")
        start.mkdir()
        lines = "from tests.project import walks\nwalks.follow()\n"
        (start / "sitecustomize.py").write_text(lines)
        files = Path(folder, "files")
        files.mkdir()
        environment = {
            **os.environ,
            **{
                "PYTHONPATH": f"{start}{os.pathsep}{CHECKOUT}",
                FOLDER_VARIABLE: str(files),
                LAST_VARIABLE: last,
            },
            "GALLERY_RUNS_DIR": str(Path(folder, "runs")),
        }
        command = [sys.executable, *arguments]
        subprocess.run(
            command, cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL, check=True
        )
        return {
            path.name.replace("%", os.sep): sorted(set(path.read_text().split()))
            for path in sorted(files.iterdir())
        }


def main(walks: list[str]) -> None:
    """Print the files of each walk, and how many there are."""
    for walk in walks or WALKS:
        title, arguments, last, meant = WALKS[walk]
        files = files_of(arguments, last)
        print(f"{title}: {len(files)} files (goal {meant})")
        for name, functions in files.items():
            print(f"  {name}\n      {', '.join(functions)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
