"""The website of the documents: Sphinx makes it without a warning, and it needs no network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
@pytest.mark.slow
def test_the_website_is_built_without_a_warning_and_needs_no_network(
    checkout: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", ".", tmp_path / "site"],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert {"resnet50.html", "help.html", "reference.html"} <= {page.name for page in pages}
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link [^>]*href="https?:')
    assert [page for page in pages if loaded.search(page.read_text())] == []
