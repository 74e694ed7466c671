"""Build of the website: collect sources, run Sphinx over them, and check every page.

The sources are `docs/` and the pages that the other modules write. Nothing is executed except the
imports that the reference takes. The build is strict. It fails on a Sphinx warning, on a broken
link, and on a page that loads something from the network. A finished site replaces the old one as a
whole. Until then, and after a failure, the old site stays.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gallery_lib
from gallery_lib.config import SiteConfig
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.notebooks.batch.measured_code import code_digest
from gallery_lib.notebooks.site import check, documents, index, measured, notebooks, reference
from gallery_lib.system import paths
from gallery_lib.system.extras import install_command
from gallery_lib.system.json_files import write_json
from gallery_lib.system.processes import die_with_parent

TOOLS = ("sphinx", "myst_nb", "furo")
MARK_FILE = "gallery-site.json"
"""File in every site; it says when the site was built, and from which batch of notebooks."""
_NOT_OF_THE_SITE = ("__pycache__", "gallery")
"""Folders below `docs/` that the site leaves out: it makes its own pages of the notebooks."""
_SHOWN_PROBLEMS = 40


def _checked_out(config: SiteConfig) -> tuple[Path, Path, Path | None]:
    """Return the checkout, the folder to write, and the folder of the batch.

    Raises:
        InputError: for missing tools, a missing checkout, or an output folder with other content.
    """
    missing = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"building the site takes tools that are not installed here ({', '.join(missing)}). "
            f"Install them: {install_command('site')}"
        )
    root = paths.checkout()
    if root is None:
        raise InputError(
            "gallery_lib is installed without its checkout, which holds the sources of the site: "
            "run this in the checkout."
        )
    out = Path(config.out).absolute() if config.out else root / "build" / "site"
    if (
        out.exists()
        and not (out / MARK_FILE).is_file()
        and (not out.is_dir() or any(out.iterdir()))
    ):
        raise InputError(
            f"{out} is there already and is not a site, so it is left alone. Name another folder "
            "with --out.",
            parameter="out",
        )
    return root, out, Path(config.run).absolute() if config.run else None


def write_sources(root: Path, run: Path | None, folder: Path) -> None:
    """Write everything that Sphinx reads into `folder`.

    These are the checkout's documents, and pages made of notebooks, figures and options. Raises
    InputError for a `run` that is not the folder of a batch.
    """
    sources = notebooks.sources(root / "notebooks", run)
    shutil.copytree(root / "docs", folder, ignore=shutil.ignore_patterns(*_NOT_OF_THE_SITE))
    documents.write(root, folder)
    cards = folder / "static" / index.CARDS
    cards.mkdir()
    for source in sources:
        notebooks.write_page(source, folder / "notebooks")
    results = measured.read_results(root / "benchmarks" / "results")
    here = measured.measured_in_batch(run) if run else []
    digests = {
        source.name: code_digest(root / "notebooks" / f"{source.name}.ipynb") for source in sources
    }
    entries = [index.entry(source, [*here, *results], digests, cards) for source in sources]
    project = [*sorted(path.name for path in (root / "docs").glob("*.md")), *documents.DOCUMENTS]
    (folder / "index.md").write_text(index.page(entries, project), encoding="utf-8")
    reference.write_pages(Path(gallery_lib.__file__).parent, folder)


def run_sphinx(sources: Path, pages: Path) -> None:
    """Build HTML in the folder `pages` from the folder `sources`.

    Raises:
        RunFailed: with the warnings, when there are any.
    """
    package_root = str(Path(gallery_lib.__file__).resolve().parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            filter(None, [package_root, os.environ.get("PYTHONPATH", "")])
        ),
    }
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-q",
        "-n",
        "-W",
        "--keep-going",
        "-d",
        str(sources.parent / "doctrees"),
    ]
    done = subprocess.run(
        [*command, str(sources), str(pages)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=die_with_parent,
    )
    if done.returncode:
        lines = [
            line.replace(f"{sources}{os.sep}", "")
            for line in (done.stderr + done.stdout).splitlines()
            if line.strip()
        ]
        raise RunFailed(
            "\n".join([f"Sphinx ended with exit code {done.returncode}:", *lines[:_SHOWN_PROBLEMS]])
        )


def _put_in_place(pages: Path, out: Path) -> None:
    """Rename `pages` to `out`, and move an old site out of the way first.

    Both are on the same file system, so `out` is never incomplete.
    """
    old = pages.with_name("old")
    if out.exists():
        out.rename(old)
    pages.rename(out)


def build(config: SiteConfig) -> Path:
    """Build the site and return its folder; an existing site is replaced.

    Raises:
        InputError: when tools are missing, when the folder to write holds something else, or when
            the folder of the batch holds none.
        RunFailed: when a page is faulty.
    """
    root, out, run = _checked_out(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as work:
        sources, pages = Path(work) / "sources", Path(work) / "pages"
        write_sources(root, run, sources)
        run_sphinx(sources, pages)
        problems = check.problems(pages)
        if problems:
            raise RunFailed(
                "\n".join(
                    [
                        f"{len(problems)} fault(s) in the finished pages:",
                        *problems[:_SHOWN_PROBLEMS],
                    ]
                )
            )
        write_json(
            pages / MARK_FILE,
            {"built": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "batch": run.name if run else None},
        )
        _put_in_place(pages, out)
    return out
