"""Write the parts of README.md and the guides that come from other files.

    python3 docs/generated.py            write them
    python3 docs/generated.py --check    exit code 1, and their names, when a page is not up to date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; NAME is a key of `PARTS`. The
notebooks take their copy of the diff from here as well (notebooks/build.py).
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
    *sorted((DOCS / "guides").glob("*.md")),
)
MACHINE = DOCS.parent / "benchmarks" / "results" / "epyc-zen5-2core"
"""Machine whose figures README shows: all tasks, small and large, beside every peer at its best."""
PART = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CONTEXT_LINES = 3
RESULTS_HEAD = [
    "model",
    "small input",
    "eager",
    "best peer",
    "ours",
    "over eager",
    "over best peer",
    "large input",
    "over eager",
    "over best peer",
]


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


def _bench(size: str) -> Any:
    """Return the machine's run of small or of large inputs with the most variants.

    Of several it is the latest.
    """
    from gallery_lib.measure.bench.result import read_bench

    def worth(bench: Any) -> tuple[int, str]:
        outcomes = bench.tasks.values()
        return min(len(one.rows) for one in outcomes), max(one.date for one in outcomes)

    return max((read_bench(path) for path in MACHINE.glob(f"bench-{size}*.json")), key=worth)


def _input(task: Any, sizes: dict[str, Any]) -> str:
    """Return batch and size of an input: `16 × 64×64 pixels`."""
    from gallery_lib.config import TrainConfig, options

    own = {name: size for name, size in sizes.items() if name in task.quick}
    return (
        f"{own['batch_size']} × "
        f"{task.input_size(options.from_mapping(TrainConfig, {'model': task.name, **own}))}"
    )


def _ratios(bench: Any, name: str) -> list[str]:
    """Return ours over eager, and over the best peer, in a task."""
    from gallery_lib.measure.bench.result import OURS
    from gallery_lib.report.bench.leads import over_best

    outcome, best = bench.tasks[name], over_best(bench, name)
    return [str(outcome.ratio(outcome.baseline, OURS) or "–"), str(best[1]) if best else "–"]


def _means(bench: Any) -> list[str]:
    """Return the geometric means of ours over eager, and over the best peer of each task."""
    from gallery_lib.report.bench.leads import mean_over_best, mean_over_tasks

    return [str(mean_over_tasks(bench, bench.baseline)[0]), str(mean_over_best(bench)[0])]


def _result_row(name: str, small: Any, large: Any) -> list[str]:
    """Return the row of a task: its speeds with small inputs, and ratios with small and large."""
    from gallery_lib import tasks
    from gallery_lib.console.table import number
    from gallery_lib.measure.bench.result import OURS
    from gallery_lib.report.bench.leads import over_best

    task, outcome, best = tasks.get(name), small.tasks[name], over_best(small, name)
    speed = {
        variant: number(row.samples_per_second["global"])
        for variant, row in outcome.rows.items()
        if row.reason is None
    }
    return [
        task.title,
        _input(task, outcome.sizes),
        speed[outcome.baseline],
        f"{speed[best[0]]} ({best[0]})" if best else "–",
        speed[OURS],
        *_ratios(small, name),
        _input(task, large.tasks[name].sizes),
        *_ratios(large, name),
    ]


def results() -> str:
    """Return the table of README: each task with small and large inputs on one machine."""
    from gallery_lib.console.table import markdown_table
    from gallery_lib.system import hardware

    small, large = _bench("small"), _bench("large")
    day = max(outcome.date for outcome in small.tasks.values())[:10]
    precision = "fp32" if small.baseline == "eager-fp32" else "mixed precision (bfloat16)"
    about = f"Samples a second in {precision} on {hardware.describe(small.environment)}, {day}."
    rows = [
        RESULTS_HEAD,
        *(_result_row(name, small, large) for name in small.tasks),
        ["geometric mean", "", "", "", "", *_means(small), "", *_means(large)],
    ]
    return f"{about}\n\n{markdown_table(rows)}"


def picture() -> str:
    """Draw README's picture; return the Markdown that shows it."""
    from gallery_lib.report.bench.figure import figure

    PICTURES.mkdir(exist_ok=True)
    figure(_bench("small")).savefig(PICTURES / "speed-ups.png", dpi=110)
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


def cuda_paths() -> str:
    """Return the table of what of the GPU side ran, and where."""
    import runpy

    table: Callable[[], str] = runpy.run_path(str(DOCS / "cuda_paths.py"))["table"]
    return table()


PARTS: dict[str, Callable[[], str]] = {
    "cuda-paths": cuda_paths,
    "diff": diff,
    "floors": floors,
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
