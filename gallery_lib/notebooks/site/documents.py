"""Copy the checkout's documents into the site's sources, with their pictures and raw files.

The documents keep their relative places, so links between them, and links from notebooks, still
work. A link to something outside the site, mostly code, becomes plain text. The `README.md` of a
folder gets navigation to the other pages of the folder and to those below it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

DOCUMENTS = ("CONTRIBUTING.md", "SECURITY.md")
FOLDERS = ("benchmarks/results", "benchmarks/notes")
PAGE = "README.md"
_ENDINGS = (".md", ".png", ".json", ".csv")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def without_links_outside(text: str, page: Path) -> str:
    """Return the text of `page`, with links to missing files replaced by their words."""

    def kept(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        return link[0] if "://" in target or (page.parent / target).is_file() else words

    return _LINK.sub(kept, text)


def _navigation(page: Path, text: str) -> str:
    """Return a hidden toctree of the pages below `page`; '' for none.

    The pages stand in the order in which the text of `page` links to them.
    """
    below = [*page.parent.glob("*.md"), *page.parent.glob(f"*/{PAGE}")]
    names = [path.relative_to(page.parent).as_posix() for path in below if path != page]
    entries = sorted(
        names, key=lambda name: (f"]({name}" not in text, text.find(f"]({name}"), name)
    )
    return (
        "\n".join(
            [
                "",
                "```{toctree}",
                ":hidden:",
                *(name.removesuffix(".md") for name in entries),
                "```",
                "",
            ]
        )
        if entries
        else ""
    )


def write(root: Path, folder: Path) -> None:
    """Copy the documents of the checkout `root` into `folder`, the site's sources."""
    originals = [root / name for name in DOCUMENTS]
    originals += [
        path
        for name in FOLDERS
        for path in sorted((root / name).rglob("*"))
        if path.suffix in _ENDINGS
    ]
    copies = [folder / path.relative_to(root) for path in originals]
    for path, copy in zip(originals, copies, strict=True):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for page in (copy for copy in copies if copy.suffix == ".md"):
        text = without_links_outside(page.read_text(encoding="utf-8"), page)
        page.write_text(
            text + (_navigation(page, text) if page.name == PAGE else ""), encoding="utf-8"
        )
