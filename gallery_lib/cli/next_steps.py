"""Three commands to paste once `prepare.sh` has ended.

    python -m gallery_lib.cli.next_steps FOLDER [--into-current]

The commands open the notebooks, train a task, and compare it with PyTorch as it comes. They work as
they stand in a plain shell in FOLDER, where `prepare.sh` was called. Their sizes suit a few cores.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.system import paths

_SIZES = ("batch_size", "image_size", "sequence_length")


def commands(root: Path, folder: Path, *, into_current: bool) -> list[str]:
    """Return the commands for the checkout at `root`.

    Args:
        root: the checkout.
        folder: the folder of the shell; paths are absolute unless this is the checkout.
        into_current: whether prepare.sh installed into the active environment.
    """

    def here(file: str) -> str:
        return file if folder == root else shlex.quote(str(root / file))

    # A packed task has its own notebook alone.
    model = next(
        name
        for name in ["resnet50", *tasks.names()]
        if (root / "notebooks" / f"{name}.ipynb").is_file()
    )
    options = " ".join(
        [
            f"--model {model}",
            *(
                f"--{name} {value}"
                for name, value in tasks.get(model).quick.items()
                if name in _SIZES
            ),
        ]
    )
    programs = paths.environment_dir(root) / "bin"

    def program(name: str) -> str:
        return (
            here(f".venv/bin/{name}")
            if programs == root / ".venv" / "bin"
            else shlex.quote(str(programs / name))
        )

    python = "python3" if into_current else program("python")
    gallery = "python3 -m gallery_lib" if into_current else program("gallery")
    return [
        f"bash {here('prepare.sh')} --lab{' --into-current' if into_current else ''}",
        f"{python} {here('launch_single_task.py')} {options} --compiler-opt",
        f"{gallery} compare {options}",
    ]


def main() -> None:
    """Print the commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into-current", action="store_true")
    arguments = parser.parse_args()
    print(
        "Ready. The notebooks in JupyterLab; one task, accelerated; "
        "the same beside PyTorch as it comes:"
    )
    for command in commands(
        Path(__file__).resolve().parents[2],
        arguments.folder.resolve(),
        into_current=arguments.into_current,
    ):
        print(f"  {command}")


if __name__ == "__main__":
    main()
