"""The package's docstrings, prose with google sections, are shown with all that they say."""

from __future__ import annotations

import io
import runpy
from pathlib import Path

import pytest
from docutils.core import publish_string
from sphinx.application import Sphinx

from gallery_lib.notebooks.site.docstrings import restructured


def understood(docstring: str) -> str:
    """Return the docstring's elements and words as docutils reads them, on one line.

    Raises AssertionError for what docutils warns of.
    """
    warnings = io.StringIO()
    settings = {"warning_stream": warnings, "output_encoding": "unicode", "report_level": 2}
    text = publish_string(
        f".. default-role:: literal\n\n{restructured(docstring)}",
        writer="pseudoxml",
        settings_overrides=settings,
    )
    assert not warnings.getvalue(), f"{warnings.getvalue()}\n{docstring}"
    return " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "What trails_ an underscore, |bars|, 2*3*4 and a lone * or ` are text.",
        "A path C:\\new and an end::",
        "Shapes [N, T] → [N] of a__b",
    ],
)
def test_what_looks_like_markup_is_shown_as_it_stands(text: str) -> None:
    assert understood(text).endswith(f"<paragraph> {text}")


@pytest.mark.parametrize(
    ("docstring", "elements"),
    [
        ("Takes `a_b*` or `|`.", "Takes <literal> a_b* or <literal> | ."),
        ("One `of two\nlines` here.", "One <literal> of two lines here."),
        ("It is *not* so, **never**.", "It is <emphasis> not so, <strong> never ."),
        ("Text:\n\n- one_\n- two\n\nMore.", "one_ <list_item> <paragraph> two <paragraph> More."),
        (
            "0. *First* and\n   more\n1. Second",
            "<emphasis> First and more <list_item> <paragraph> Second",
        ),
        (
            "So:\n\n    x = *y_\n      `z`|\n\n    w\n\nEnd_.",
            'xml:space="preserve"> x = *y_ `z`| w <paragraph> End_.',
        ),
    ],
)
def test_code_emphasis_lists_and_blocks_are_kept(docstring: str, elements: str) -> None:
    assert elements in understood(docstring)


MODULE = '''"""Shows what docstrings hold."""

LIMIT = 3
"""Number of things: as many as `fit`, with |bars|."""


def call(a, b=0, *, from_=0, **form):
    """Return a thing; `a` comes first.

        call(1, form_="x")

    Args:
        a, b: what `c`
            is.
        from_: where_ it begins.
        **form: one of *them*.

    Returns:
        The thing, a number.

    Raises:
        ValueError: for |a| above `LIMIT`.
        OSError: where it fails.

    Example:
        >>> call(*things, **{"x_": 1}) | LIMIT
        |3|
    """
'''
PAGE = """Shows what docstrings hold.

LIMIT = 3

   Number of things: as many as "fit", with |bars|.

call(a, b=0, *, from_=0, **form)

   Return a thing; "a" comes first.

      call(1, form_="x")

   Parameters:
      * **a** -- what "c" is.

      * **b** -- what "c" is.

      * **from_** -- where_ it begins.

      * ****form** -- one of *them*.

   Returns:
      The thing, a number.

   Raises:
      * **ValueError** -- for |a| above "LIMIT".

      * **OSError** -- where it fails.

   -[ Example ]-

   >>> call(*things, **{"x_": 1}) | LIMIT
   |3|
"""


def test_sections_and_attributes_are_shown_with_all_that_they_say(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shown_by_a_test.py").write_text(MODULE)
    (tmp_path / "index.rst").write_text(".. automodule:: shown_by_a_test\n   :members:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    conf = runpy.run_path(str(checkout / "docs" / "conf.py"))
    settings = {
        name: value
        for name, value in conf.items()
        if name.startswith(("autodoc_", "napoleon_", "add_")) or name == "default_role"
    }
    settings["extensions"] = [name for name in conf["extensions"] if name != "myst_nb"]
    warnings = io.StringIO()
    out = tmp_path / "out"
    app = Sphinx(tmp_path, None, out, out, "text", settings, status=None, warning=warnings)
    app.build()
    assert warnings.getvalue() == ""
    assert (out / "index.txt").read_text() == PAGE
