"""Folded text is complete, in the plain form too."""

from __future__ import annotations

from gallery_lib.report.folded import figure_in_words, folded, unfolded


def test_only_the_title_is_seen_until_it_is_opened_and_the_plain_form_has_it_all() -> None:
    text = "\n\n".join(["Before.", folded("More", "a\n\nb"), folded("Yet more", "c")])
    assert text.count("<details>") == text.count("</details>") == 2
    assert unfolded(text) == "Before.\n\nMore:\n\na\n\nb\n\nYet more:\n\nc"


def test_a_figure_in_words_has_alternative_text_and_table() -> None:
    said = figure_in_words("A line that rises.", [["step", "loss"], ["1", "7.00"]])
    assert said.startswith("<details>") and "A line that rises.\n\n| step | loss |" in said
    assert unfolded(figure_in_words("A line.", None)) == "The same in words:\n\nA line."
