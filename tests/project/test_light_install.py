"""`pip install .` without an extra: torch, numpy, psutil and what those need are enough to train.

The environment is a folder with links to these packages alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from light_environment import link_packages

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package, what it requires, and what that requires."""
    folder = tmp_path_factory.mktemp("site-packages")
    names = link_packages(folder, checkout / "pyproject.toml")
    assert {"torch", "numpy", "psutil"} <= names and "pillow" not in names
    # A copy: beside the checkout's own the command would find the environment of prepare.sh.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(checkout / "gallery_lib", folder / "gallery_lib", ignore=ignored)
    own = importlib.metadata.distribution("gallery_lib")
    (folder / "gallery_lib-0.dist-info").symlink_to(own._path)  # type: ignore[attr-defined]
    return folder


def _run(packages: Path, code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment |= {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}
    environment |= {"GALLERY_CACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        **{"env": environment, "cwd": tmp_path, "capture_output": True, "text": True},
        timeout=300,
    )


def test_the_import_is_free_and_says_its_version(packages: Path, tmp_path: Path) -> None:
    code = """
import sys
before = set(sys.modules)
import gallery_lib
print(sorted(name for name in set(sys.modules) - before if name.startswith(("gallery", "torch"))))
print(gallery_lib.__version__)
"""
    done = _run(packages, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"['gallery_lib']\n{importlib.metadata.version('gallery_lib')}\n"


TRAINING = """
import torch
from gallery_lib import Config, accelerate
from gallery_lib.checkpoint import Checkpoint

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
loader = torch.utils.data.DataLoader(torch.randn(8, 3, 6, 6), batch_size=4)
optimizer = torch.optim.AdamW(model.parameters())
model, loader, optimizer = accelerate(model, loader, optimizer, Config())
checkpoint = Checkpoint("saved", model=model, optimizer=optimizer, loader=loader, every=1)
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    checkpoint.step()
checkpoint.close()
print(type(optimizer).__module__, float(loss) > 0)
compiled = torch.compile(torch.nn.Linear(4, 4), backend="gallery")
print(compiled(torch.ones(2, 4)).shape)
"""


def test_a_script_trains_compiles_and_saves(packages: Path, tmp_path: Path) -> None:
    done = _run(packages, TRAINING, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "gallery_lib.optim.fused_cpu True\ntorch.Size([2, 4])\n"


@pytest.mark.parametrize(
    ("words", "extra"), [(["list"], "tasks"), (["run", "resnet50"], "notebooks")]
)
def test_what_is_missing_is_named_with_its_extra(
    packages: Path, tmp_path: Path, words: list[str], extra: str
) -> None:
    code = (
        "import sys; from gallery_lib.__main__ import main\n"
        f"sys.argv[1:] = {words}; sys.exit(main())"
    )
    done = _run(packages, code, tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'gallery_lib[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1
