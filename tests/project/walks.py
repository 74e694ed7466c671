"""Count the files of the package that an option passes on its way.

    python -m tests.project.walks

A file counts when one of its functions is given the option: the words of the command line, a
configuration, or an object that has one. Counted are all processes of a command, by a profiler that
each starts with, and for `accelerate()` the files that are given the model, loader or optimizer.
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
TRAINING = ["--model=resnet18", f"--batch_size={BATCH_SIZE}", "--image_size=32"]
WALKS = {
    "launch_single_task.py, to the first batch": (
        ["launch_single_task.py", *TRAINING, "--max_steps=2"],
        "device_loader.py:__iter__",
        15,
    ),
    "gallery compare, to its verdict": (
        *(["-m", "gallery_lib", "compare", *TRAINING, "--rounds=2", "--block_steps=2"],),
        *("", 20),
    ),
    "accelerate()": (["-m", "tests.project.walks", "accelerate"], "", 20),
}
"""Walk → arguments of Python, the function at which it ends, files that are meant to be enough."""
_followed: list[Any] = []


def _carries(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        return f"--batch_size={BATCH_SIZE}" in value
    if any(value is one for one in _followed):
        return True
    if isinstance(value, list | tuple) and depth < 2:
        return any(_carries(part, depth + 1) for part in value[:50])
    if isinstance(value, dict) and depth < 2:
        return "batch_size" in value or any(_carries(v, depth + 1) for v in value.values())
    attributes = getattr(value, "__dict__", {})
    if attributes.get("batch_size") == BATCH_SIZE:
        return True
    return depth < 2 and any(
        name.strip("_").endswith("config") and _carries(part, depth + 1)
        for name, part in attributes.items()
    )


def follow() -> None:
    """Note in the folder of the environment which files are given the option, in this process."""
    folder, last = Path(os.environ[FOLDER_VARIABLE]), os.environ[LAST_VARIABLE]
    seen: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        name = code.co_filename.removeprefix(PACKAGE)
        if last and f"{Path(name).name}:{code.co_name}" == last:
            sys.setprofile(None)
        elif name not in seen and code.co_name != "<module>":
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
            given = [frame.f_locals[a] for a in arguments if a in frame.f_locals]
            if any(map(_carries, given)):
                seen.add(name)
                (folder / name.replace(os.sep, "%")).touch()

    sys.setprofile(profile)


def _accelerate() -> None:
    import torch

    from gallery_lib import Config, accelerate

    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.randn(8, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH_SIZE)
    optimizer, config = torch.optim.AdamW(model.parameters()), Config()
    _followed.extend((model, loader, optimizer, config))
    accelerate(model, loader, optimizer, config)


def files_of(arguments: list[str], last: str) -> list[str]:
    """Run Python with these arguments; return the files of the package on the walk."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder, "start")
        start.mkdir()
        lines = f"import sys; sys.path.append({str(CHECKOUT)!r})\nfrom tests.project import walks\n"
        (start / "sitecustomize.py").write_text(lines + "walks.follow()\n")
        files = Path(folder, "files")
        files.mkdir()
        environment = {
            **os.environ,
            **{"PYTHONPATH": str(start), FOLDER_VARIABLE: str(files), LAST_VARIABLE: last},
            "GALLERY_RUNS_DIR": str(Path(folder, "runs")),
        }
        subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, env=environment, check=True)
        return sorted(path.name.replace("%", os.sep) for path in files.iterdir())


def main() -> None:
    """Print the files of each walk, and how many there are."""
    for name, (arguments, last, meant) in WALKS.items():
        files = files_of(arguments, last)
        print(f"{name}: {len(files)} files (goal {meant})", *files, sep="\n  ")


if __name__ == "__main__":
    if sys.argv[1:] == ["accelerate"]:
        sys.modules["tests.project.walks"]._followed = _followed
        _accelerate()
    else:
        main()
