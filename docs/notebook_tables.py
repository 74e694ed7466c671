"""Tables of the notebooks, for README and for docs/gallery: what they measured, with a picture.

Speed-ups are those of the bench of `PUBLISHED`. How long a notebook took, and what its own run
said, is read from its page in docs/gallery.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gallery_lib import tasks
from gallery_lib.console.text import markdown_table
from gallery_lib.measure.bench_result import OURS, Bench, read_bench
from gallery_lib.system import hardware

DOCS = Path(__file__).resolve().parent
GALLERY = DOCS / "gallery"
THUMBNAILS = DOCS / "images" / "thumbnails"
RESULTS = DOCS.parent / "benchmarks" / "results"
PUBLISHED = "epyc-zen5-2core"
"""Machine whose figures README shows, by its folder."""
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
class Published:
    """Bench of PUBLISHED: all tasks, beside every peer."""

    bench: Bench

    @property
    def date(self) -> str:
        """Return the day of the newest task."""
        return max(outcome.date for outcome in self.bench.tasks.values())[:10]

    @property
    def precision(self) -> str:
        """Return the precision of all variants: `fp32`, or `bf16 autocast` for O1 on a CPU."""
        if self.bench.amp_level == "O0":
            return "fp32"
        return "bf16 autocast" if self.bench.environment["device"] == "cpu" else "autocast"

    @property
    def described(self) -> str:
        """Return when, where, in which precision and with which code, as half a sentence."""
        environment = self.bench.environment
        return (
            f"measured on {self.date} in {self.precision} on {hardware.describe(environment)}, "
            f"with code version {environment.get('git') or 'not recorded'}"
        )

    def speedup(self, task: str) -> str:
        """Return ours over eager with its interval, and the verdict where it is not `faster`."""
        outcome = self.bench.tasks.get(task)
        if outcome is None or not outcome.rows:
            return "–"
        ratio = outcome.ratio(outcome.baseline, OURS)
        if ratio is None:
            return "not comparable"
        return f"{ratio}" + ("" if ratio.verdict == "faster" else f", {ratio.verdict}")


def published(size: str = "small") -> Published:
    """Return the published bench: the one with the most variants, and of several the newest.

    `size` is small or large, as the names of the files have it.
    """

    def worth(one: Published) -> tuple[int, int, str]:
        variants = min(len(outcome.rows) for outcome in one.bench.tasks.values())
        return len(one.bench.tasks), variants, max(o.date for o in one.bench.tasks.values())

    files = sorted((RESULTS / PUBLISHED).glob(f"bench-{size}*.json"))
    return max((Published(read_bench(path)) for path in files), key=worth)


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


def _short(words: str) -> str:
    """Return a speed-up without its interval, unless the interval holds 1."""
    match = re.fullmatch(r"([\d.]+)× \(([\d.]+) to ([\d.]+)\)", words)
    if match is None or float(match[2]) <= 1 <= float(match[3]):
        return words
    return f"**{match[1]}×**"


def for_readme() -> str:
    """Return README's table: picture, notebook and what it shows, speed-up, how long it took."""
    pages, shown = _pages(), published()
    # Without a heading that does not break, a narrow page would have pictures of no width.
    heading = f"{4 * NBSP}samples/s{4 * NBSP}"
    rows = [[heading, "notebook with its outputs", "speed-up", "took"]]
    for page in pages:
        what = SHOWS.get(page.name) or tasks.get(page.name).domain
        rows.append(
            [
                f'<img src="docs/{page.thumbnail()}" width="110" alt="{page.title}: its result">',
                f"[{page.title}](docs/gallery/{page.name}.md)<br>{what}",
                _short(shown.speedup(page.name)),
                page.run[0].replace(" ", NBSP),
            ]
        )
    return markdown_table(rows)


def for_gallery() -> str:
    """Return the table of docs/gallery: the published speed-up, and that of the page's own run."""
    pages, shown = _pages(), published()
    rows = [["notebook", "speed-up, as published", "what its own run said", "took", "day"]]
    rows += [
        [
            f"[{page.title}]({page.name}.md)",
            shown.speedup(page.name),
            page.verdict or "–",
            *page.run,
        ]
        for page in pages
    ]
    about = (
        f"*As published*: small inputs, {shown.described} "
        f"([all of it](../../benchmarks/results/{PUBLISHED}/README.md)). README shows the same. A "
        "page's own run is one more measurement, of fewer rounds, on another day."
    )
    return f"{markdown_table(rows)}\n\n{about}"
