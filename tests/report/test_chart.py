"""A chart's alternative text is its title and its table, and folded text is complete."""

from __future__ import annotations

from matplotlib.figure import Figure

from gallery_lib.report.chart import Chart
from gallery_lib.report.folded import folded, unfolded


def test_the_alternative_text_is_the_title_and_the_table_without_markup() -> None:
    rows = [["", "step", "note"], ["[BERT](hf_Bert.ipynb)", "410 ms", ""], ["a\\_b", "1 s", "x"]]
    chart = Chart("Two models\nemulated link", rows, Figure)
    assert chart.alternative_text == (
        "Two models; emulated link. Columns: step, note. BERT: 410 ms; a_b: 1 s, x."
    )


def test_of_a_long_table_the_first_rows_are_read() -> None:
    rows = [["step", "loss"], *([str(n), f"{n}.0"] for n in range(1, 21))]
    words = Chart("The loss fell", rows, Figure).alternative_text
    assert words.endswith("12: 12.0; 8 more rows are in the table.") and "13.0" not in words


def test_only_the_title_is_seen_until_it_is_opened_and_the_plain_form_has_it_all() -> None:
    text = "\n\n".join(["Before.", folded("More", "a\n\nb"), folded("Yet more", "c")])
    assert text.count("<details>") == text.count("</details>") == 2
    assert unfolded(text) == "Before.\n\nMore:\n\na\n\nb\n\nYet more:\n\nc"
