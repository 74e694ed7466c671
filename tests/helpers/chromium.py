"""Debian's Chromium, driven by Playwright.

A test that asks for it is skipped where it is missing, and the reason says how to install it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
SCREENSHOTS = Path(__file__).resolve().parents[2] / "runs" / "screenshots"
"""Folder of screenshots, kept after the tests for people and as artefacts of the CI."""


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser (`playwright.sync_api.Browser`), and close it at the end."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: `bash prepare.sh --test` installs it"
    )
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("no chromium: `apt-get install chromium`, or `bash prepare.sh --test` as root")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def screenshot(page: Any, name: str) -> None:
    """Save the page as it is now as `runs/screenshots/NAME.png`."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{name}.png"))
