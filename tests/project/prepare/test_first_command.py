"""The first command, whole, in a fresh clone: its lines through a pipe, and a cell that fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_notebooks import write_notebook

from gallery_lib.cli.prepare import kernel_command
from gallery_lib.system import paths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PREPARE = "export HF_HUB_OFFLINE=1 PATH=$PWD/.venv/bin:$PATH && bash prepare.sh"
SMALL = "-p rounds 4 -p block_steps 2 -p processes 1 -p waterfall false -p batch_size 16"
STAMP = """
from gallery_lib.cli.prepare import PLAIN, ROOT, STAMP, stamp_of
(ROOT / ".venv" / STAMP).write_text(stamp_of(PLAIN))
"""
END = r"""tts_angular: passed, (\d+) of \1 code cells in .*
tts_angular: (\d.*× as fast as|no measurable difference from) PyTorch eager in .*
((The machine was busy|Threads waited).*\n)?notebook: +(?P<notebook>.*/tts_angular\.ipynb)
log: +(?P<log>.*/papermill\.txt)
Next, in .*
  bash prepare\.sh --lab.*
  \.venv/bin/gallery run --profile quick.*
  \.venv/bin/gallery --help.*$"""
"""What the first command says in the end."""


@dataclass(frozen=True)
class Clone:
    """A folder with the sources, and the home folder of its user."""

    root: Path
    home: Path

    def run(self, command: str, *, seconds: float = 560) -> subprocess.CompletedProcess[str]:
        """Run the command as it stands in a shell that knows of no environment.

        There is no activation and no PYTHONPATH, and PATH is the system's.
        """
        # The last folder is for machines whose system has no Python.
        search = f"/usr/local/bin:/usr/bin:/bin:{sys.base_prefix}/bin"
        shell = ["env", "-i", f"HOME={self.home}", f"PATH={search}"]
        return subprocess.run(
            [*shell, "bash", "--norc", "--noprofile", "-c", command],
            **{"cwd": self.root, "stdin": subprocess.DEVNULL, "timeout": seconds},
            capture_output=True,
            text=True,
        )


def make_environment(root: Path) -> None:
    """Make `root/.venv` around the packages that are installed for this interpreter.

    Its Python finds `root` first, and it has the commands that are installed here.
    """
    venv, here = root / ".venv", Path(sys.prefix) / "bin"
    make = [sys.executable, "-m", "venv", "--without-pip", "--prompt", "gallery", str(venv)]
    subprocess.run(make, check=True, timeout=60)
    bases = {"base": str(venv), "platbase": str(venv)}
    packages = (sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    lines = [f"{path}\n" for path in dict.fromkeys([str(root), *packages])]
    Path(sysconfig.get_path("purelib", "venv", vars=bases), "clone.pth").write_text("".join(lines))
    for command in here.iterdir():
        own = venv / "bin" / command.name
        if own.exists() or not command.is_file():
            continue
        if command.read_bytes()[:2] != b"#!":
            own.symlink_to(command)
            continue
        text = command.read_text(encoding="utf-8")  # a script, which names its interpreter
        for folder in (here, here.resolve()):
            text = text.replace(f"{folder}/python", f"{venv}/bin/python")
        own.write_text(text, encoding="utf-8")
        own.chmod(0o755)


@pytest.fixture(scope="module")
def clone(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone in which nothing is left to install, in an odd folder.

    It has the files that git tracks, as they are in the working tree. Mock data and compiler caches
    are those of the checkout.
    """
    folder = tmp_path_factory.mktemp("first-command")
    made = Clone(folder / "mes modèles à moi", folder / "home")
    made.home.mkdir()
    words = ["git", "ls-files", "-z"]
    listed = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if name and (checkout / name).is_file():
            (made.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, made.root / name)
    make_environment(made.root)
    paths.cache_dir().mkdir(exist_ok=True)
    (made.root / ".cache").symlink_to(paths.cache_dir())
    python = made.root / ".venv" / "bin" / "python3"
    done = made.run(" ".join(f"'{word}'" for word in kernel_command(python)))
    assert done.returncode == 0, done.stderr
    (made.root / "stamp.py").write_text(STAMP)
    done = made.run(f"PYTHONPATH=. '{python}' stamp.py")
    assert done.returncode == 0, done.stderr
    return made


def test_a_pipe_gets_few_lines_and_the_answer_last(clone: Clone) -> None:
    done = clone.run(f"({PREPARE} --run tts_angular {SMALL}) 2>&1", seconds=1400)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) <= 40, done.stdout
    said = "\n".join(line for line in lines if line and not line.startswith("      done"))
    end = re.search(END, said)
    assert end, done.stdout
    assert Path(end["notebook"]).is_file() and Path(end["log"]).is_file()


def test_a_failed_cell_is_named_with_its_reason(clone: Clone) -> None:
    write_notebook(clone.root, "wrong", "1", "def divide():\n    return 1 / 0", "divide()")
    done = clone.run(f"({PREPARE} --run wrong.ipynb) 2>&1")
    assert done.returncode == 1
    assert "ZeroDivisionError: division by zero, in cell 3 of 3, `divide()`" in done.stdout
    assert "Next" not in done.stdout
