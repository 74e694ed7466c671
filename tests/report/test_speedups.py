"""Speed-up pictures of all notebooks and of one, and the table that says the same."""

from __future__ import annotations

import dataclasses

from matplotlib.colors import to_hex

from gallery_lib.report import speedups
from gallery_lib.report.speedups import HERE, Speedup
from gallery_lib.stats import Ratio

FASTER = Speedup(
    "resnet50",
    "ResNet-50",
    Ratio(1.5, 1.4, 1.6),
    "faster",
    "fp32, batch size 16",
    HERE,
    "2026-11-20T12:00:00",
)
ELSEWHERE = dataclasses.replace(
    FASTER,
    name="vgg16",
    title="VGG-16",
    ratio=Ratio(1.1, 0.9, 1.3),
    verdict="no measurable difference",
    machine="2 cores of A CPU",
)
NONE = dataclasses.replace(
    FASTER, name="hf_Bert", title="BERT", ratio=None, verdict="not comparable"
)
ALL = [FASTER, ELSEWHERE, NONE]


def test_the_table_links_to_each_notebook_and_names_the_machine() -> None:
    assert speedups.chart(ALL).rows[1:] == [
        [
            "[ResNet-50](resnet50.ipynb)",
            "1.50× (1.40 to 1.60)",
            "fp32, batch size 16",
            HERE,
            "2026-11-20",
        ],
        [
            "[VGG-16](vgg16.ipynb)",
            "1.10× (0.90 to 1.30), no measurable difference",
            "fp32, batch size 16",
            "2 cores of A CPU",
            "2026-11-20",
        ],
        ["[BERT](hf_Bert.ipynb)", "not comparable", "fp32, batch size 16", HERE, "2026-11-20"],
    ]


def test_a_speedup_that_is_none_says_so() -> None:
    assert ELSEWHERE.in_words == "1.10× (0.90 to 1.30), no measurable difference"


def test_every_bar_has_its_length_and_another_machines_is_hatched() -> None:
    drawn = speedups.chart(ALL).draw()
    axes = drawn.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1.5, 1.1]
    assert [bar.get_hatch() for bar in axes.patches] == [None, "///"]
    assert [text.get_text().strip() for text in axes.texts] == ["1.50×", "1.10×", "not comparable"]
    assert to_hex(axes.patches[1].get_facecolor()) == "#ffffff"  # hollow: not measurable
    assert "hollow" in axes.get_xlabel() and drawn.get_suptitle().endswith("another machine")
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["ResNet-50", "VGG-16", "BERT"]  # the fastest first
    turned = speedups.chart(ALL[::-1]).draw()
    assert [label.get_text() for label in turned.axes[0].get_yticklabels()] == labels
    assert speedups.chart([FASTER]).title == "Accelerated backend over PyTorch eager"
