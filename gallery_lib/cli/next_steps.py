"""Three commands to paste once `prepare.sh` has ended, as a plain shell in FOLDER needs them.

    python -m gallery_lib.cli.next_steps FOLDER [NOTEBOOK [NAME VALUE]…]

After a task's notebook, they are of what it has measured. Else their sizes suit a few cores.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gallery_lib import tasks

_SIZES = ("batch_size", "image_size", "sequence_length")
_SAME = (*_SIZES, "amp_level", "amp_dtype", "data_dir", "seed")
"""Parameters of a notebook that are options of a training, too."""


def commands(
    root: Path, folder: Path, python: Path, notebook: str = "", words: Sequence[str] = ()
) -> list[str]:
    """Return the commands for the checkout at `root` and the environment's `python`.

    `words` are names and values of the parameters with which `notebook` was run. Paths are absolute
    unless `folder`, that of the shell, is the checkout.
    """

    def here(path: Path) -> str:
        short = folder == root and path.is_relative_to(root)
        return shlex.quote(str(path.relative_to(root) if short else path))

    # A packed task has its own notebook alone.
    model = next(
        name
        for name in [notebook, "resnet50", *tasks.names()]
        if name in tasks.names() and (root / "notebooks" / f"{name}.ipynb").is_file()
    )
    values = {name: value for name, value in tasks.get(model).quick.items() if name in _SIZES}
    if model == notebook:
        pairs = zip(words[::2], words[1::2], strict=True)
        values |= {name: value for name, value in pairs if name in _SAME}
    options = " ".join(
        ["--model", model, *(f"--{name} {shlex.quote(str(v))}" for name, v in values.items())]
    )
    return [
        f"bash {here(root / 'prepare.sh')} --lab",
        f"{here(python)} {here(root / 'launch_single_task.py')} {options} --compiler-opt",
        f"{here(python.parent / 'gallery')} compare {options}",
    ]


if __name__ == "__main__":
    print(
        "\nNext: the notebooks in JupyterLab; one training, accelerated; "
        "the same training beside PyTorch as it comes:"
    )
    folder, notebook, *words = [*sys.argv[1:], ""] if len(sys.argv) == 2 else sys.argv[1:]
    root, python = Path(__file__).resolve().parents[2], Path(sys.executable)
    for command in commands(root, Path(folder).resolve(), python, notebook, words):
        print(f"  {command}")
