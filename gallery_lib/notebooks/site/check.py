"""Check of a finished site: its pages load only its own files, links work, pictures have alt text.

Links into the network are not followed. A script, style, font or picture from the network is a
fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
_LOADED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "modulepreload",
    "manifest",
    "mask-icon",
    "apple-touch-icon",
}
_STYLE_ADDRESS = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")


@dataclass
class Page:
    """Loaded addresses, links and anchors of a page, and its pictures without alternative text."""

    loaded: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    without_words: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        page = self.page
        page.anchors.update(
            filter(None, [values.get("id"), values.get("name") if tag == "a" else None])
        )
        page.loaded += _addresses_in_style(values.get("style", ""))
        if (name := _LOADED.get(tag)) and values.get(name):
            page.loaded.append(values[name])
        page.loaded += [
            part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()
        ]
        if tag == "link" and set(values.get("rel", "").split()) & _LOADED_LINKS:
            page.loaded.append(values.get("href", ""))
        if tag == "a" and "href" in values:
            page.linked.append(values["href"])
        if tag == "img" and not values.get("alt", "").strip():
            page.without_words.append(values.get("src", ""))
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.page.loaded += _addresses_in_style(data)


def _addresses_in_style(text: str) -> list[str]:
    return [one or other for one, other in _STYLE_ADDRESS.findall(text)]


def read_page(path: Path) -> Page:
    """Return the addresses, anchors and pictures of the page at `path`."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def _outside(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def _missing(address: str, start: Path, site: Path) -> bool:
    """Return whether the file that `start` loads from `address` is not in the site."""
    if address.startswith("data:"):
        return False
    target = (start.parent / unquote(urlsplit(address).path)).resolve()
    return not (target.is_file() and target.is_relative_to(site))


def problems(site: Path) -> list[str]:
    """Return a message for each fault; an empty list for a site without faults."""
    site = site.resolve()
    pages = {path: read_page(path) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.loaded:
            if _outside(address):
                faults.append(f"{name} loads {address} from elsewhere")
            elif _missing(address, path, site):
                faults.append(f"{name} loads {address}, which is not there")
        for address in page.linked:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or not target.is_relative_to(site):
                faults.append(f"{name} links to {address}, which is not there")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].anchors
            ):
                faults.append(f"{name} links to {address}, and that page has no such place")
        faults += [
            f"{name} shows {address} without alternative text" for address in page.without_words
        ]
    for path in sorted(site.rglob("*.css")):
        for address in _addresses_in_style(path.read_text(encoding="utf-8")):
            if _outside(address) or _missing(address, path, site):
                faults.append(f"{path.relative_to(site)} loads {address}, which is not in the site")
    return list(dict.fromkeys(faults))
