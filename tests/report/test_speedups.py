"""Speed-up pictures of all notebooks and of one, and the table that says the same."""

from __future__ import annotations

import dataclasses

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
    assert speedups.rows(ALL)[1:] == [
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
    drawn = speedups.figure(ALL)
    axes = drawn.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1.5, 1.1]
    assert [bar.get_hatch() for bar in axes.patches] == [None, "///"]
    assert [text.get_text().strip() for text in axes.texts] == ["1.50×", "1.10×", "not comparable"]
    assert drawn.get_suptitle().endswith("grey: no measurable difference; hatched: another machine")
    assert speedups.figure([FASTER]).get_suptitle() == "Accelerated backend over PyTorch eager"
    said = speedups.figure_text(ALL)
    assert (
        "on this machine: ResNet-50 1.50× (1.40 to 1.60); BERT not comparable. And on 2 cores of "
        "A CPU: VGG-16 1.10× (0.90" in said
    )


def test_a_card_shows_one_notebook_beside_pytorch_eager() -> None:
    axes = speedups.card(ELSEWHERE).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1.0, 1.1]
    assert all(bar.get_hatch() is None for bar in axes.patches)
    assert speedups.card_text(ELSEWHERE) == (
        "VGG-16: accelerated backend over PyTorch eager, 1.10× (0.90 to 1.30), no measurable "
        "difference; "
        "fp32, batch size 16, on 2 cores of A CPU."
    )
    speedups.card(NONE).savefig("/dev/null", format="png")
