"""The site opened from its folder in a real browser, without a network.

The tests cover the filter, a phone's screen, dark mode and serious accessibility faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, screenshot

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("the whole site"),
]

RESULTS = "benchmarks/results/xeon-amx-faster-2core/README"
PAGES = (
    "index",
    "notebooks/resnet50",
    "benchmarks/results/README",
    RESULTS,
    "options",
    "guides/own_code",
    "api/measure",
)
PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
TOO_WIDE = """[...document.querySelectorAll("body *")].filter(element => \
element.getBoundingClientRect().right > innerWidth + 1)
    .map(element => element.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


class Visit:
    """A window with settings of its own; notes what its pages ask for that is not a file."""

    def __init__(self, browser: Any, site: Path, **settings: Any) -> None:
        self.site, self.context, self.elsewhere = site, browser.new_context(**settings), list[str]()
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self._note(request.url))
        self.page.on("pageerror", lambda error: self.elsewhere.append(str(error)))

    def _note(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.elsewhere.append(url)

    def open(self, name: str) -> Any:
        self.page.goto((self.site / f"{name}.html").as_uri())
        return self.page


@pytest.fixture
def visit(browser: Any, site: Path) -> Iterator[Any]:
    """Yield visit(**settings), which opens a window; all are closed at the end.

    None of the windows may have asked the network for anything.
    """
    visits: list[Visit] = []

    def start(**settings: Any) -> Visit:
        visits.append(Visit(browser, site, **settings))
        return visits[-1]

    yield start
    for one in visits:
        one.context.close()
        assert one.elsewhere == []


def shown(page: Any) -> list[str]:
    """Return the titles of the notebooks that are visible."""
    return page.locator(".gallery-list > li:visible h3").all_inner_texts()


def test_the_filter_works_by_keyboard_and_shows_all_again(visit: Any) -> None:
    page = visit().open("index")
    everything = shown(page)
    assert "ResNet-50" in everything and "BERT" in everything
    page.get_by_label("Domain").focus()
    page.keyboard.type("language")
    assert shown(page) == ["BART", "BERT"]
    assert (
        page.locator(".gallery-filter output").inner_text() == f"2 of {len(everything)} notebooks"
    )
    screenshot(page, "site-filtered")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "document.querySelectorAll('.gallery-list > li:not([hidden])').length === "
        f"{len(everything)}"
    )
    helped = {
        item.locator("h3").inner_text(): item.get_attribute("data-helped").split("|")
        for item in page.locator(".gallery-list > li").all()
    }
    # It depends on what was measured last.
    for what in {each for several in helped.values() for each in several}:
        page.get_by_label("What helped").select_option(what)
        assert shown(page) == [title for title in everything if what in helped[title]] != everything


def test_without_javascript_the_list_is_whole_and_its_links_lead_on(visit: Any) -> None:
    page = visit(java_script_enabled=False).open("index")
    assert page.locator(".gallery-filter").count() == 0
    assert len(shown(page)) == page.locator(".gallery-list > li").count() > 10
    page.get_by_role("heading", name="ResNet-50").get_by_role("link").click()
    assert page.locator("article h1").inner_text().startswith("ResNet-50")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(visit: Any, name: str) -> None:
    page = visit(viewport=PHONE, device_scale_factor=2, has_touch=True).open(name)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], page.evaluate(TOO_WIDE)
    if name in PAGES[:4]:
        screenshot(page, f"site-phone-{name.replace('/', '-')}")


@pytest.mark.parametrize("name", PAGES[2:4])
def test_a_page_of_results_fits_a_laptop_with_its_first_table_in_view(
    visit: Any, name: str
) -> None:
    page = visit(viewport=LAPTOP).open(name)
    assert page.evaluate("document.documentElement.scrollWidth") <= LAPTOP["width"], page.evaluate(
        TOO_WIDE
    )
    assert page.locator("table").first.bounding_box()["y"] < LAPTOP["height"]
    screenshot(page, f"site-laptop-{name.replace('/', '-')}")


def brightness(page: Any, selector: str, property: str) -> float:
    """Return the brightness of a colour of the element, from 0 (black) to 1 (white)."""
    script = (
        "([s, p]) => getComputedStyle(document.querySelector(s))[p]"
        ".match(/[\\d.]+/g).slice(0, 3).map(Number)"
    )
    red, green, blue = page.evaluate(script, [selector, property])
    return (0.3 * red + 0.59 * green + 0.11 * blue) / 255


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_code_and_the_filter_follow_the_readers_choice_of_light_or_dark(
    visit: Any, scheme: str
) -> None:
    window = visit(color_scheme=scheme)
    for name, selectors in (
        ("index", ("body", ".gallery-filter select")),
        ("notebooks/resnet50", ("body", ".cell_input .highlight")),
    ):
        page = window.open(name)
        for selector in selectors:
            background, text = (
                brightness(page, selector, "backgroundColor"),
                brightness(page, selector, "color"),
            )
            assert (
                (background < 0.25 and text > 0.6)
                if scheme == "dark"
                else (background > 0.9 and text < 0.45)
            ), selector
        screenshot(page, f"site-{scheme}-{name.replace('/', '-')}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES[:2])
def test_axe_finds_no_serious_fault(visit: Any, name: str, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no axe: bash prepare.sh --test installs it"
    )
    page = visit(color_scheme=scheme).open(name)
    found = axe.Axe().run(page).response["violations"]
    serious = [
        (fault["id"], [node["html"][:200] for node in fault["nodes"]])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []
