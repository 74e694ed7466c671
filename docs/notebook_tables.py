"""Tables of the notebooks, for README and for docs/gallery: what they measured, with a picture.

Speed-ups are those of the published bench (`gallery_lib.notebooks.batch.latest`). How long a
notebook took, and what its own run said, is read from its page in docs/gallery.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.console.table import markdown_table
from gallery_lib.notebooks.batch import latest
from gallery_lib.stats import Ratio

DOCS = Path(__file__).resolve().parent
GALLERY = DOCS / "gallery"
THUMBNAILS = DOCS / "images" / "thumbnails"
RESULTS = DOCS.parent / "benchmarks" / "results"
SHOWS = {
    "data_parallel": "a plain script, step by step",
    "communication": "bytes, techniques, what is learned",
    "performance_data": "all tasks on 1 to 8 hosts, replayed",
    "your_model": "measured as the eleven are",
}
"""What the notebooks of no task show, in README's order."""
NBSP = "\N{NO-BREAK SPACE}"
"""Space at which a narrow table breaks no line."""
_FIGURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)\)$", re.MULTILINE)
_RUN = re.compile(r"^> \*\*Run on (?P<day>[\d-]+)\*\* in (?P<took>.+?) with ", re.MULTILINE)
_VERDICT = re.compile(r"^\*\*[^*\n]+?: (?P<verdict>[^*\n]+?)\.?\*\*", re.MULTILINE)
_INTERVAL = re.compile(r"\(99 % interval (?P<low>[\d.]+) to (?P<high>[\d.]+)\)")
_THROUGHPUT = "trains nothing for"
"""Words in the alternative text of the throughput since launch."""
_WIDTH, _HEIGHT, _COLOURS = 320, 190, 32


@dataclass(frozen=True)
class Page:
    """Page of a notebook with its outputs."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """Return the heading."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def run(self) -> tuple[str, str]:
        """Return how long the run took, and its day."""
        match = _RUN.search(self.text)
        assert match, f"{self.name}.md does not say when it was run"
        return match["took"], match["day"]

    @property
    def verdict(self) -> str:
        """Return what the run said of the speed-up, without names and break-even; "" for none."""
        match = _VERDICT.search(self.text) if self.name in (*tasks.names(), "your_model") else None
        if match is None or "PyTorch eager" not in match["verdict"]:
            return ""
        words = match["verdict"].partition(", start-up")[0]
        words = re.sub(r" (as fast as|from|with) PyTorch eager in [\w ]+?(?= \()", "", words)
        return _INTERVAL.sub(r"(\g<low> to \g<high>)", words)

    def thumbnail(self) -> str:
        """Write a small picture of the page, and return its path from `docs/`.

        It is that of throughput since launch, where the page has one, else the first.
        """
        from PIL import Image, ImageFilter, ImageOps

        figures = _FIGURE.findall(self.text)
        file = next((file for words, file in figures if _THROUGHPUT in words), None)
        picture = Image.open(GALLERY / (file or figures[0][1])).convert("RGB")
        # Darker neighbours win, so that lines are seen when they are small.
        small = ImageOps.pad(
            picture.filter(ImageFilter.MinFilter(3)),
            (_WIDTH, _HEIGHT),
            Image.Resampling.LANCZOS,
            color=(255, 255, 255),
        )
        THUMBNAILS.mkdir(parents=True, exist_ok=True)
        small.quantize(_COLOURS).save(THUMBNAILS / f"{self.name}.png", optimize=True)
        return f"images/thumbnails/{self.name}.png"


def _pages() -> list[Page]:
    """Return the pages, those of tasks first."""
    names = [name for name in (*tasks.names(), *SHOWS) if (GALLERY / f"{name}.md").is_file()]
    return [Page(name, (GALLERY / f"{name}.md").read_text(encoding="utf-8")) for name in names]


def _speedups(pages: list[Page]) -> dict[str, str]:
    """Return the published speed-up of each task with its interval, in words."""
    shown = latest.published(RESULTS)
    titles = {page.name: page.title for page in pages}
    found = shown.speedups(titles) if shown else {}
    return {name: one.in_words for name, one in found.items()}


def _short(words: str) -> str:
    """Return a speed-up without its interval, unless the interval holds 1."""
    match = re.fullmatch(r"([\d.]+)× \(([\d.]+) to ([\d.]+)\)", words)
    if match is None or Ratio(*map(float, match.groups())).verdict == "no measurable difference":
        return words
    return f"**{match[1]}×**"


def for_readme() -> str:
    """Return README's table: picture, notebook and what it shows, speed-up, how long it took."""
    pages = _pages()
    speedups = _speedups(pages)
    # Without a heading that does not break, a narrow page would have pictures of no width.
    heading = f"{4 * NBSP}samples/s{4 * NBSP}"
    rows = [[heading, "notebook with its outputs", "speed-up", "took"]]
    for page in pages:
        what = SHOWS.get(page.name) or tasks.get(page.name).domain
        rows.append(
            [
                f'<img src="docs/{page.thumbnail()}" width="110" alt="{page.title}: its result">',
                f"[{page.title}](docs/gallery/{page.name}.md)<br>{what}",
                _short(speedups[page.name]) if page.name in speedups else "–",
                page.run[0].replace(" ", NBSP),
            ]
        )
    return markdown_table(rows)


def for_gallery() -> str:
    """Return the table of docs/gallery: the published speed-up, and that of the page's own run."""
    pages, shown = _pages(), latest.published(RESULTS)
    speedups = _speedups(pages)
    rows = [["notebook", "speed-up, as published", "what its own run said", "took", "day"]]
    rows += [
        [
            f"[{page.title}]({page.name}.md)",
            speedups.get(page.name, "–"),
            page.verdict or "–",
            *page.run,
        ]
        for page in pages
    ]
    about = (
        f"*As published*: small inputs, {shown.described} "
        f"([all of it](../../benchmarks/results/{latest.PUBLISHED}/README.md)). README and the "
        "index show the same. A page's own run is one more measurement, of fewer rounds, "
        "on another day."
        if shown
        else ""
    )
    return f"{markdown_table(rows)}\n\n{about}".rstrip()
