"""Configuration of Sphinx, which makes a website of the checkout's documents.

    .venv/bin/sphinx-build -W -c docs . build/site

The documents stay where they are, so that their links are the same here and in a checkout. Nothing
is executed. The pages load nothing from the network: no MathJax, no require.js, no fonts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAVIGATION = {
    "Notebooks": ["docs/gallery/README"],
    "Guides": ["docs/guides/*"],
    "Measurements": ["benchmarks/results/README", "benchmarks/notes/README"],
    "Reference": ["docs/reference"],
    "Project": ["docs/architecture", "CONTRIBUTING", "SECURITY", "CHANGELOG"],
}
"""Pages of the navigation by their caption; README.md gets it as a table of contents."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)[^)\s]*\)")

project = "Accelerated training gallery"
html_title = project
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/**/*.md",
    "benchmarks/**/*.md",
]

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # else loaded from a CDN
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 4
highlight_language = "text"  # of code without a language: most of it is shell commands
default_role = "code"  # of single backticks in docstrings
napoleon_numpy_docstring = False
autodoc_typehints_format = "short"

html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses in a plain folder


def toctree(caption: str, pages: list[str]) -> str:
    """Return a hidden table of contents, as Markdown."""
    return "\n".join(["\n```{toctree}", ":hidden:", ":glob:", caption, *pages, "```\n"])


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Add a table of contents to README, and to the README of each folder of pages."""
    folder = page.removesuffix("README")
    if page == root_doc:
        source[0] += "".join(
            toctree(f":caption: {caption}", pages) for caption, pages in NAVIGATION.items()
        )
    elif folder != page:
        below = [
            name.removeprefix(folder) for name in app.env.found_docs if name.startswith(folder)
        ]
        below = [name for name in below if re.fullmatch(r"[\w-]+(/README)?", name)]
        source[0] += toctree("", sorted({*below} - {"README"}))


def keep_links_of_the_site(app: Any, page: str, source: list[str]) -> None:
    """Replace a link to a folder, or to a text that is no page of the site, by its words."""

    def link(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(ROOT / Path(page).parent / match[2]))
        if path.is_dir() or (path.is_file() and path.suffix in (".md", ".ipynb")):
            name = path.relative_to(ROOT).with_suffix("").as_posix()
            return match[0] if name in app.env.found_docs else match[1]
        return match[0]

    source[0] = LINK.sub(link, source[0])


def options_table(cls: type) -> str:
    """Return the options of `cls` as a Markdown table: name, default, values, meaning."""
    from gallery_lib.config.options import options_of

    rows = ["| option | default | must be | meaning |", "|---|---|---|---|"]
    for name, declared in options_of(cls).items():
        default = "" if declared.default is None else f"`{declared.default}`"
        rows.append(f"| `{name}` | {default} | {declared.must_be} | {declared.help} |")
    return "\n".join(rows)


def add_options(app: Any, page: str, source: list[str]) -> None:
    """Add the tables of options to the reference."""
    if page != "docs/reference":
        return
    from gallery_lib import config

    for cls in (config.TrainConfig, config.LaunchConfig, config.CompareConfig):
        source[0] += f"\n## Options: `{cls.__name__}`\n\n{options_table(cls)}\n"


def give_captions_a_level(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the captions of the navigation a heading level, which screen readers need."""
    if navigation := context.get("furo_navigation_tree"):
        context["furo_navigation_tree"] = navigation.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def setup(app: Any) -> None:
    """Connect the handlers of this file; Sphinx calls this function."""
    for handler in (add_navigation, keep_links_of_the_site, add_options):
        app.connect("source-read", handler)
    # It runs after the theme, which makes the navigation.
    app.connect("html-page-context", give_captions_a_level, priority=900)
