"""The check of finished pages finds each kind of fault, and none in a correct page."""

from __future__ import annotations

from pathlib import Path

import pytest

from gallery_lib.notebooks.site.check import problems

GOOD = """<html><head><link rel="stylesheet" href="style.css">\
<script src="_static/a.js"></script></head>
<body id="top"><a href="#top">up</a> <a href="sub/other.html#there">on</a> \
<a href="https://example.org/x">away</a>
<img src="a.png?v=1" alt="A picture" srcset="a.png 2x">\
<img src="data:image/png;base64,xyz" alt="Inside"></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return two correct pages with a style, a script and a picture."""
    for folder in ("sub", "_static"):
        (tmp_path / folder).mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "sub" / "other.html").write_text(
        '<p id="there"><a href="../index.html">back</a></p>'
    )
    (tmp_path / "style.css").write_text(
        "body { background: url('a.png') } p { background: url(data:image/png;base64,x) }"
    )
    for file in ("a.png", "_static/a.js"):
        (tmp_path / file).touch()
    return tmp_path


def test_a_whole_site_has_no_fault(site: Path) -> None:
    assert problems(site) == []


@pytest.mark.parametrize(
    ("added", "message"),
    [
        (
            '<script src="https://cdn.example/x.js"></script>',
            "index.html loads https://cdn.example/x.js from elsewhere",
        ),
        (
            '<link rel="preload stylesheet" href="//fonts.example/x.css">',
            "loads //fonts.example/x.css from elsewhere",
        ),
        ('<img src="http://example/x.png" alt="x">', "loads http://example/x.png from elsewhere"),
        (
            '<p style="background: url(https://example/x.png)">',
            "loads https://example/x.png from elsewhere",
        ),
        (
            "<style>@import 'https://example/x.css';</style>",
            "loads https://example/x.css from elsewhere",
        ),
        (
            '<img src="a.png" alt="x" srcset="http://example/2.png 2x">',
            "loads http://example/2.png from elsewhere",
        ),
        ('<script src="gone.js"></script>', "loads gone.js, which is not there"),
        ('<a href="gone.html">x</a>', "links to gone.html, which is not there"),
        ('<a href="../outside.html">x</a>', "links to ../outside.html, which is not there"),
        (
            '<a href="sub/other.html#nowhere">x</a>',
            "links to sub/other.html#nowhere, and that page has no such place",
        ),
        ('<a href="#nowhere">x</a>', "links to #nowhere, and that page has no such place"),
        ('<img src="a.png">', "shows a.png without alternative text"),
        ('<img src="a.png" alt=" ">', "shows a.png without alternative text"),
    ],
)
def test_each_fault_is_named_with_its_page(site: Path, added: str, message: str) -> None:
    (site.parent / "outside.html").touch()
    (site / "index.html").write_text(GOOD + added)
    (found,) = problems(site)
    assert message in found


def test_a_font_from_elsewhere_in_a_style_is_a_fault(site: Path) -> None:
    (site / "style.css").write_text("@font-face { src: url(https://fonts.example/x.woff2) }")
    assert problems(site) == [
        "style.css loads https://fonts.example/x.woff2, which is not in the site"
    ]
