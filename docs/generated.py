"""Write the parts of README.md and the guides that come from other files.

    python3 docs/generated.py            write them
    python3 docs/generated.py --check    exit code 1, and their names, when a page is not up to date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of `PARTS`.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS / "examples"
PICTURES = DOCS / "images"
PAGES = (
    DOCS.parent / "README.md",
    DOCS / "architecture.md",
    DOCS / "gallery" / "README.md",
    *sorted((DOCS / "guides").glob("*.md")),
)
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONTEXT_LINES = 3


def diff() -> str:
    """Return the differences between the two example scripts, as fenced Markdown.

    Their docstrings are left out.
    """
    plain, accelerated = (
        (EXAMPLES / name).read_text().splitlines()[1:] for name in ("plain.py", "accelerated.py")
    )
    lines = list(difflib.unified_diff(plain, accelerated, n=CONTEXT_LINES, lineterm=""))[2:]
    shortened = ["…" if line.startswith("@@") else line for line in lines]
    return "\n".join(["```diff", *shortened[1:], "```"])


def _ratios(bench: Any, name: str) -> list[str]:
    """Return ours over eager, and over the best peer, in a task."""
    from gallery_lib.measure.bench_result import OURS
    from gallery_lib.report.bench import over_best

    outcome, best = bench.tasks[name], over_best(bench, name)
    return [str(outcome.ratio(outcome.baseline, OURS) or "–"), str(best[1]) if best else "–"]


def _result_row(name: str, small: Any, large: Any) -> list[str]:
    """Return the row of a task: ratios with small and large inputs, rates with small ones."""
    from gallery_lib import tasks
    from gallery_lib.console.text import number
    from gallery_lib.measure.bench_result import OURS

    outcome = small.tasks[name]
    eager, ours = (
        number(outcome.rows[variant].samples_per_second["global"])
        for variant in (outcome.baseline, OURS)
    )
    return [
        tasks.get(name).title,
        *_ratios(small, name),
        _ratios(large, name)[0],
        f"{eager} → {ours}",
    ]


def results() -> str:
    """Return the table of README: each task with small and large inputs on one machine."""
    import notebook_tables

    from gallery_lib.console.text import markdown_table
    from gallery_lib.report.bench import mean_over_best, mean_over_tasks
    from gallery_lib.system import hardware

    shown = notebook_tables.published()
    small, large = shown.bench, notebook_tables.published("large").bench
    over_eager, over_eager_large = (
        str(mean_over_tasks(bench, bench.baseline)[0]) for bench in (small, large)
    )
    rows = [
        ["model", "over eager", "over best peer", "large: over eager", "samples/s, eager → ours"],
        *(_result_row(name, small, large) for name in small.tasks),
        ["geometric mean", over_eager, str(mean_over_best(small)[0]), over_eager_large, ""],
    ]
    # A narrow page breaks a line before an interval, and nowhere else.
    rows[1:] = [
        [
            re.sub(r" (?!\()", "\N{NO-BREAK SPACE}", cell) if "×" in cell or "→" in cell else cell
            for cell in row
        ]
        for row in rows[1:]
    ]
    machine, software = hardware.describe(shown.bench.environment).split("; ")
    about = [
        ["measured on", "precision", "machine", "software", "code version"],
        [shown.date, shown.precision, machine, software, str(shown.bench.environment["git"])],
    ]
    return f"{markdown_table(about)}\n\n{markdown_table(rows)}"


def notebooks() -> str:
    """Return README's table of notebooks; their small pictures are written."""
    import notebook_tables

    return notebook_tables.for_readme()


def gallery() -> str:
    """Return the table of docs/gallery."""
    import notebook_tables

    return notebook_tables.for_gallery()


def picture() -> str:
    """Draw README's picture; return the Markdown that shows it."""
    import notebook_tables

    from gallery_lib.report import style
    from gallery_lib.report.bench import chart

    PICTURES.mkdir(exist_ok=True)
    style.save(chart(notebook_tables.published().bench).draw(), PICTURES / "speed-ups.png")
    words = (
        "A bar with its interval for each model, and a tick for the best peer; "
        "the table under Results has the figures"
    )
    return f"![{words}](docs/images/speed-ups.png)"


def floors() -> str:
    """Return the table of rooms by floor, from the script that checks imports, top floor first."""
    import runpy

    checks = runpy.run_path(str(DOCS.parent / "tests" / "project" / "import_direction.py"))
    rows = ["| floor | room | what is in it |", "|---|---|---|"]
    for floor, rooms in reversed(list(enumerate(checks["FLOORS"]))):
        rows += [f"| {floor} | `{room}` | {purpose} |" for room, purpose in rooms.items()]
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str]] = {
    "diff": diff,
    "floors": floors,
    "gallery": gallery,
    "notebooks": notebooks,
    "results": results,
    "picture": picture,
}


def with_parts(text: str) -> str:
    """Return the page with every part made anew.

    Raises SystemExit for a part that nobody makes.
    """

    def part(match: re.Match[str]) -> str:
        if match["name"] not in PARTS:
            raise SystemExit(f"no part is called {match['name']}; there are: {', '.join(PARTS)}")
        return f"{match[1]}\n{PARTS[match['name']]()}\n\n{match[3]}"

    return PART.sub(part, text)


def main() -> int:
    """Write or check all pages, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit code 1 when a page is not up to date",
    )
    check = parser.parse_args().check
    sys.path.insert(0, str(DOCS.parent))
    from gallery_lib.system.prepared_python import run_in_prepared_environment

    run_in_prepared_environment()
    different = [page for page in PAGES if page.read_text() != with_parts(page.read_text())]
    if check and different:
        names = ", ".join(str(page.relative_to(DOCS.parent)) for page in different)
        print(f"not up to date: {names}. Run: python3 docs/generated.py", file=sys.stderr)
        return 1
    for page in different:
        page.write_text(with_parts(page.read_text()))
    print(f"{len(PAGES)} pages, {len(different)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
