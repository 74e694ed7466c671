"""What `gallery try` says of a script whose figures are made up."""

from __future__ import annotations

import pytest
from helpers.trials import a_trial

from gallery_lib.system import hardware
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.trial import findings
from gallery_lib.trial.run import Reports


@pytest.mark.parametrize("units", [False, True])
def test_emulated_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch, units: bool) -> None:
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device: units)
    work = [{"flops": 1e9, "bytes": 1e6, "dtype": "bfloat16"}]
    look = Reports(newest={"work": work, "items": 0, "threads": 2, "world": 1})
    quiet = MachineLoad(0.0, 0.0, 0.0)
    named = [one for one in findings.of(a_trial(), look, quiet) if "bfloat16 is emulated" in one]
    assert bool(named) is not units


@pytest.mark.parametrize(
    ("processes", "threads", "waited", "policy", "named"),
    [
        (1, 2, 0.0, None, ""),
        (2, 1, 0.0, None, ""),
        (2, 2, 0.0, None, "2 processes of 2 threads share 2 cores"),
        (1, 2, 0.5, None, "OMP_WAIT_POLICY=passive"),
        (1, 2, 0.5, "passive", ""),
    ],
)
def test_threads_that_take_each_other_s_cores_are_named(
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    threads: int,
    waited: float,
    policy: str | None,
    named: str,
) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    look = Reports(newest={"work": [], "items": 0, "threads": threads, "world": processes})
    load = MachineLoad(0.0, waited, waited)
    found = findings.of(a_trial(processes=processes), look, load)
    assert [named in one for one in found] == ([True] if named else [])
