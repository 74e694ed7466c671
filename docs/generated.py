"""Write the parts of README.md and the guides that come from other files.

    python3 docs/generated.py            write them
    python3 docs/generated.py --check    exit code 1, and their names, when a page is not up to date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of `PARTS`.
The notebooks take their copy of the diff from here as well (notebooks/build.py).
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS / "examples"
PAGES = (DOCS.parent / "README.md", *sorted((DOCS / "guides").glob("*.md")))
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONTEXT_LINES = 3


def diff() -> str:
    """Return, as fenced Markdown, everything that differs between the two example scripts but their docstrings."""
    plain, accelerated = ((EXAMPLES / name).read_text().splitlines()[1:] for name in ("plain.py", "accelerated.py"))
    lines = list(difflib.unified_diff(plain, accelerated, n=CONTEXT_LINES, lineterm=""))[2:]
    kept = ["…" if line.startswith("@@") else line for line in lines]
    return "\n".join(["```diff", *kept[1:], "```"])


PARTS: dict[str, Callable[[], str]] = {"diff": diff}


def written(text: str) -> str:
    """Return the page with every part made anew. Raises SystemExit for a part that nobody makes."""

    def part(match: re.Match[str]) -> str:
        if match["name"] not in PARTS:
            raise SystemExit(f"no part is called {match['name']}; there are: {', '.join(PARTS)}")
        return f"{match[1]}\n{PARTS[match['name']]()}\n\n{match[3]}"

    return PART.sub(part, text)


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is not up to date")
    check = parser.parse_args().check
    different = [page for page in PAGES if page.read_text() != written(page.read_text())]
    if check and different:
        names = ", ".join(str(page.relative_to(DOCS.parent)) for page in different)
        print(f"not up to date: {names}. Run: python3 docs/generated.py", file=sys.stderr)
        return 1
    for page in different:
        page.write_text(written(page.read_text()))
    print(f"{len(PAGES)} pages, {len(different)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
