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
    there = [name for name in tasks.names() if (root / "notebooks" / f"{name}.ipynb").is_file()]
    model = next(name for name in [notebook, "resnet50", *there] if name in there)
    values = {name: value for name, value in tasks.get(model).quick.items() if name in _SIZES}
    if model == notebook:
        values |= {k: v for k, v in zip(words[::2], words[1::2], strict=True) if k in _SAME}
    sizes = [f"--{name} {shlex.quote(str(value))}" for name, value in values.items()]
    options = " ".join([f"--model {model}", *sizes])
    return [
        f"bash {here(root / 'prepare.sh')} --lab",
        f"{here(python)} {here(root / 'launch_single_task.py')} {options} --compiler-opt",
        f"{here(python.parent / 'gallery')} compare {options}",
    ]


if __name__ == "__main__":
    folder, notebook, *words = sys.argv[1:] if len(sys.argv) > 2 else [*sys.argv[1:], ""]
    root = Path(__file__).resolve().parents[2]
    titles = "the notebooks in JupyterLab; one training, accelerated; the same training beside"
    print(f"\nNext: {titles} PyTorch as it comes:")
    for command in commands(root, Path(folder).resolve(), Path(sys.executable), notebook, words):
        print(f"  {command}")
