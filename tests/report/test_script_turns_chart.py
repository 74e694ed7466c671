"""Figure, text, table and notes of scripts that took turns say what came out."""

from __future__ import annotations

from pathlib import Path

import pytest

from gallery_lib.measure.comparison.script_turns import Command, Script, ScriptTurns
from gallery_lib.report.script_turns_chart import chart, notes
from gallery_lib.system.machine_load import MachineLoad, Others

QUIET = MachineLoad(
    cores=2, load_average=[0.1, 0.2], start_up=None, turns=None, stolen=0.0, drift={}
)
BUSY = MachineLoad(2, [0.1, 0.2], None, Others(1.5, "gcc", 1.5), 0.0, {})


def turns_of(
    rates: dict[str, float], losses: dict[str, float] | None = None, load: MachineLoad = QUIET
) -> ScriptTurns:
    """Return turns of scripts with these throughputs; all but `several` have native's batches."""
    command = Command(Path("script.py"))
    scripts = {
        name: Script(
            command, f"conditions of {name}", None if name == "several" else "native", 0.01
        )
        for name in rates
    }
    scripts["native"] = Script(command, "PyTorch eager in fp32")
    rounds = {name: [[rate, rate * 1.01]] * 6 for name, rate in rates.items()}
    return ScriptTurns(scripts, {**dict.fromkeys(rates, 4.6), **(losses or {})}, rounds, load)


@pytest.mark.parametrize(
    ("rates", "title"),
    [
        ({"native": 10, "accelerated": 20}, "accelerated is 2.00× as fast as native"),
        ({"native": 10, "accelerated": 5}, "accelerated is 0.50× as fast as native"),
        (
            {"native": 10, "accelerated": 10.1},
            "No measurable difference between accelerated and native",
        ),
        (
            {"native": 10, "accelerated": 20, "several": 40},
            "accelerated is 2.00× as fast as native\nfastest is several: 4.00×",
        ),
        (
            {"native": 10, "accelerated": 20, "several": 11},
            "accelerated is 2.00× as fast as native",
        ),
    ],
)
def test_the_title_says_what_came_out(rates: dict[str, float], title: str) -> None:
    shown = chart(turns_of(rates))
    assert shown.title == title
    assert shown.draw().get_suptitle() == title


def test_the_table_has_ratio_interval_first_loss_and_conditions_of_each_script() -> None:
    turns = turns_of({"native": 10, "accelerated": 20, "several": 40}, {"accelerated": 4.61})
    header, native, accelerated, several = chart(turns).rows
    assert header[2] == "times as fast as native"
    assert native == ["native", "10.1 samples/s", "1", "4.6000", "", "PyTorch eager in fp32"]
    assert accelerated[2].startswith("2.00× (1.") and accelerated[3] == "4.6100"
    assert accelerated[4] == "first loss 0.22% from native's; at most 1.0%"
    assert several[4].startswith("not checked") and several[5] == "conditions of several"
    assert "Rounds: 6, with 2 counted" in notes(turns)[0]


def test_without_parity_there_is_a_reason_and_no_ratio_anywhere() -> None:
    shown = chart(turns_of({"native": 10, "accelerated": 20}, {"accelerated": 4.9}))
    words = shown.alternative_text
    assert "no ratio" in words and "NO: its first loss is 4.9000" in words and "2.00" not in words
    assert "does not train like native" in shown.title
    texts = [text.get_text() for text in shown.draw().axes[0].texts]
    assert texts == ["not comparable"]


def test_a_busy_machine_is_noted() -> None:
    quiet, busy = (turns_of({"native": 1, "several": 2}, load=load) for load in (QUIET, BUSY))
    assert not any("busy" in note for note in notes(quiet))
    assert "busy" not in chart(quiet).alternative_text
    assert "**The machine was busy**: other processes took 1.5 of 2 cores" in notes(busy)[-1]
    shown = chart(busy)
    assert "busy, so no speed is drawn" in shown.title
    assert [bar.get_width() for bar in shown.draw().axes[0].patches] == [1.0]  # of native
    assert shown.rows[2][2].endswith(", not judged: busy")
    assert len(chart(quiet).draw().axes[0].patches) == 2
