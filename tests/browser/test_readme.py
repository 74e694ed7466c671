"""README and other documents as a repository shows them, on a laptop's screen and on a phone.

Everything up to README's picture fits on one laptop screen, and a phone shows it readably.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, screenshot
from markdown_it import MarkdownIt

pytestmark = pytest.mark.browser

LAPTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
STYLE = """
body { max-width: 830px; margin: 32px auto; padding: 0 16px; \
font: 16px/1.5 "Liberation Sans", sans-serif; color: #1f2328; }
h1 { font-size: 2em; border-bottom: 1px solid #d1d9e0; } h2 { font-size: 1.5em; \
border-bottom: 1px solid #d1d9e0; }
body { overflow-wrap: break-word; } code { white-space: break-spaces; }
pre code { white-space: pre; }
img { max-width: 100%; } table { display: block; overflow: auto; border-collapse: collapse; \
width: max-content; max-width: 100%; }
th, td { border: 1px solid #d1d9e0; padding: 6px 13px; } pre { background: #f6f8fa; padding: 16px; \
overflow: auto; font-size: 85%; }
"""
"""Style with widths and sizes as code hosts have them."""


@pytest.fixture
def shown(checkout: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a document as a page with the pictures of the checkout."""

    def write(name: str) -> Path:
        document, page = checkout / name, tmp_path / "page.html"
        html = MarkdownIt("commonmark").enable("table").render(document.read_text())
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<base href="{document.parent.as_uri()}/">'
        )
        page.write_text(
            "<!doctype html>"
            f"<html lang=en><head>{head}<style>{STYLE}</style></head><body>{html}</body></html>"
        )
        return page

    return write


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def opened(browser: Any, document: Path, viewport: dict[str, int]) -> Any:
    page = browser.new_page(viewport=viewport)
    page.goto(document.as_uri())
    page.wait_for_function(
        "[...document.images].every(image => image.complete && image.naturalWidth)"
    )
    return page


def test_everything_up_to_the_picture_is_on_one_laptop_screen(
    browser: Any, shown: Callable[[str], Path]
) -> None:
    page = opened(browser, shown("README.md"), LAPTOP)
    box = page.locator("img").first.bounding_box()
    screenshot(page, "readme-laptop")
    assert box["y"] + box["height"] <= LAPTOP["height"], box


@pytest.mark.parametrize(
    "name",
    ["README.md", "docs/guides/help.md", "docs/gallery/README.md", "docs/gallery/resnet50.md"],
)
def test_no_part_is_wider_than_a_phone_and_pictures_are_seen(
    browser: Any, shown: Callable[[str], Path], name: str
) -> None:
    page = opened(browser, shown(name), PHONE)
    screenshot(page, f"{name.replace('/', '-').removesuffix('.md').lower()}-phone")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("Math.min(999, ...[...document.images].map(image => image.width))") > 80
