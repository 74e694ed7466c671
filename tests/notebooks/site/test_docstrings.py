"""The package's docstrings, which are prose, become reStructuredText that says the same."""

from __future__ import annotations

import io

import pytest
from docutils.core import publish_string

from gallery_lib.notebooks.site.docstrings import restructured


def understood(docstring: str) -> str:
    """Return the docstring's elements and words as docutils reads them, on one line.

    Raises AssertionError for what docutils warns of.
    """
    warnings = io.StringIO()
    settings = {"warning_stream": warnings, "output_encoding": "unicode", "report_level": 2}
    text = publish_string(
        "\n".join(restructured(docstring.splitlines())),
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
        ("Takes `a_b*`s.", "Takes <literal> a_b* s."),
        ("One `of two\nlines` here.", "One <literal> of two lines here."),
        ("It is *not* so, **never**.", "It is <emphasis> not so, <strong> never ."),
        ("Text:\n- one\n- two\nMore.", "<list_item> <paragraph> two <paragraph> More."),
        (
            "0. *First* and\n   more\n1. Second",
            "<emphasis> First and more <list_item> <paragraph> Second",
        ),
        ("So:\n\n    x = *y_\n\nEnd.", "x = *y_ <paragraph> End."),
        (
            "Does.\n\nArgs:\n    a, b: what `c`\n        is",
            "<field_name> param a, b <field_body> <paragraph> what <literal> c is",
        ),
        (
            "Does.\n\nArgs:\n    **form: one of *them*",
            "<field_name> param **form <field_body> <paragraph> one of <emphasis> them",
        ),
    ],
)
def test_code_emphasis_lists_blocks_and_arguments_are_kept(docstring: str, elements: str) -> None:
    assert elements in understood(docstring)
