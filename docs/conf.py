"""Configuration of Sphinx, which builds the site.

`gallery site` runs Sphinx on a folder that holds docs/ and the pages that are written beside it.
Nothing may come from the network: no MathJax, no require.js, no fonts.
`gallery_lib/notebooks/site/check.py` looks at every page.
"""

from __future__ import annotations

from typing import Any

project = "Accelerated training gallery"
html_title = project
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "gallery_lib.notebooks.site.docstrings",
]

nb_execution_mode = "off"  # pages show what `gallery run` left, or nothing
nb_ipywidgets_js = {}  # else loaded from a CDN
nb_render_markdown_format = "myst"  # commonmark has no tables
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
highlight_language = "text"  # of code without a language: most of it is shell commands

default_role = "code"  # of single backticks in docstrings
napoleon_numpy_docstring = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
add_module_names = False
# Every page's navigation is made anew of all entries, which would include a thousand functions.
toc_object_entries = False
# Names of other packages; then private names and type variables.
nitpick_ignore_regex = [
    ("py:.*", r"(?!gallery_lib\.).*"),
    ("py:.*", r".*\._.*|.*\.[A-Z]"),
]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["gallery.css"]
html_js_files = [("gallery.js", {"defer": "defer"})]
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses in a plain folder


def give_captions_a_level(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the captions of the navigation a heading level.

    Sphinx makes headings of them and leaves out the level, which is a fault to screen readers.
    """
    navigation = context.get("furo_navigation_tree")
    if navigation:
        context["furo_navigation_tree"] = navigation.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )


def setup(app: Any) -> None:
    """Connect the handlers of this file; Sphinx calls this function."""
    # The handler runs after the theme, which makes the navigation.
    app.connect("html-page-context", give_captions_a_level, priority=900)
