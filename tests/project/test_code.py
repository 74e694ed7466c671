"""Style, types, notebooks without outputs, generated pages, and the website."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

WRITTEN = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
CHECKS = {
    "style": ("-m", "ruff", "check", "--quiet", *WRITTEN, "."),
    "form": ("-m", "ruff", "format", "--quiet", "--check", *WRITTEN, "."),
    "types": ("-m", "mypy", "--no-error-summary"),
    "notebooks": ("-m", "nbstripout", "--verify", "--keep-id"),
    "generated pages": ("docs/generated.py", "--check"),
}


def check(checkout: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, capture_output=True, text=True, timeout=560
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CHECKS)
def test_the_code_passes(name: str, checkout: Path) -> None:
    files = map(str, checkout.glob("notebooks/*.ipynb")) if name == "notebooks" else ()
    check(checkout, *CHECKS[name], *files)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_website_is_built_without_a_warning_and_needs_no_network(
    checkout: Path, tmp_path: Path
) -> None:
    words = ("-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs")
    check(checkout, *words, "-d", f"{tmp_path}/doctrees", ".", f"{tmp_path}/site")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"resnet50.html", "help.html", "reference.html"} <= {page.name for page in pages}
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link [^>]*href="https?:')
    assert [page for page in pages if loaded.search(page.read_text())] == []
