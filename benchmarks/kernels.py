"""Check and time the own CUDA kernels on a GPU, in less than eight minutes.

    python3 benchmarks/kernels.py --out benchmarks/results/MACHINE/kernels.json

First come the tests marked `gpu`, then some of them again under compute-sanitizer's memcheck and
racecheck where it is installed. Then each kernel takes turns with torch eager, torch.compile and a
copy of as many bytes as the kernel has to move, which is the floor. What there was no time for is
named as not measured. Without a CUDA device the exit code is 2.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

import gpu_programs
import torch
from figures_file import conditions, out_file, write_result
from kernel_cases import CASES
from kernel_cases.case import Call, Case

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.console import table
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import fallback
from gallery_lib.stats import percentiles, ratio_of_medians, turn_order

BUDGET_SECONDS = 470
TESTS_SECONDS, SANITIZER_SECONDS, COMPILATION_SECONDS = 120, 45, 40
"""Limits in seconds: for the tests, for each tool, and kept free before a compilation begins."""
CALLS = 5
"""Calls of each candidate in a round."""


def _pytest(*arguments: str, seconds: float, before: tuple[str, ...] = ()) -> dict[str, Any]:
    began = time.monotonic()
    code, output = gpu_programs.run([*before, *gpu_programs.pytest_command(*arguments)], seconds)
    if code is None:
        return {"outcome": f"not finished within {seconds:.0f} s"}
    lines = [line for line in output.splitlines() if line.strip()]
    telling = ("ERROR SUMMARY", " passed", " failed", "SKIPPED", "FAILED")
    wanted = [line for line in lines if any(word in line for word in telling)]
    return {
        "outcome": "passed" if code == 0 else f"exit code {code}",
        "seconds": round(time.monotonic() - began, 1),
        "lines": wanted or lines[-10:],
    }


def correctness() -> dict[str, Any]:
    """Run the tests marked `gpu`, and those of the kernels under compute-sanitizer."""
    files = gpu_programs.gpu_tests()
    outcomes = {"pytest -m gpu": _pytest(*files, seconds=TESTS_SECONDS)}
    sanitizer = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck"):
        if sanitizer is None:
            outcomes[tool] = {"outcome": "not run: compute-sanitizer is not installed"}
        else:
            before = (sanitizer, "--tool", tool, "--error-exitcode", "99")
            outcomes[tool] = _pytest(
                "tests/kernels",
                "-x",
                "-k",
                gpu_programs.SANITIZED,
                seconds=SANITIZER_SECONDS,
                before=before,
            )
    return outcomes


def _seconds(call: Call, device: torch.device) -> list[float]:
    """Return the seconds of each of CALLS calls, one after the other.

    On CUDA events measure, so waiting for the host counts.
    """
    if device.type != "cuda":
        times = [time.perf_counter()]
        for _ in range(CALLS):
            call()
            times.append(time.perf_counter())
        return [after - before for before, after in itertools.pairwise(times)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1000 for before, after in itertools.pairwise(events)]


def _copy(bytes_moved: int, device: torch.device) -> Call:
    source = torch.zeros(max(bytes_moved // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _peak_bytes(call: Call) -> int:
    """Return how many bytes the call allocates at most, beyond what was allocated before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def timed(case: Case, device: torch.device, rounds: int, may_compile: bool) -> dict[str, Any]:
    """Return the seconds of each candidate over the rounds, with ratios and peak memory.

    The order of candidates reverses from round to round.
    """
    candidates: dict[str, Call] = {
        "ours": case.ours,
        "eager": case.eager,
        "copy": _copy(case.bytes_moved, device),
    }
    left_out = {} if case.compiled else {"compiled": "not compared"}
    if case.compiled and not may_compile:
        left_out["compiled"] = "not measured: no time left"
    elif case.compiled:
        try:
            candidates["compiled"] = case.compiled()
            candidates["compiled"]()
        # Whatever the compiler raises, the other candidates are measured all the same.
        except Exception as error:
            candidates.pop("compiled", None)
            left_out["compiled"] = (
                f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
            )
    for call in candidates.values():
        for _ in range(3):
            call()
    rows: dict[str, list[list[float]]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in turn_order(candidates, turn + 1):
            rows[name].append(_seconds(candidates[name], device))
    ratios = {
        name: dataclasses.asdict(ratio_of_medians(rows[name], rows["ours"], process_spread=0.0))
        for name in rows
        if name != "ours"
    }
    return {
        "bytes_moved": case.bytes_moved,
        "seconds": {
            name: percentiles([seconds for turn in turns for seconds in turn])
            for name, turns in rows.items()
        },
        "times_as_fast_as": ratios,
        "peak_bytes": {name: _peak_bytes(call) for name, call in candidates.items()}
        if device.type == "cuda"
        else None,
        "left_out": left_out,
        "aim": case.aim,
        "aim_met": None if case.aim is None else ratios["eager"]["ratio"] >= case.aim,
    }


def _table(cases: dict[str, Any]) -> str:
    rows = [
        [
            "kernel",
            "ours",
            "eager",
            "compiled",
            "× eager",
            "interval",
            "aim",
            "× compiled",
            "of copy rate",
        ]
    ]
    for name, case in cases.items():
        seconds, ratios = case["seconds"], case["times_as_fast_as"]
        times = [
            f"{seconds[key]['p50'] * 1e6:.0f} µs" if key in seconds else "–"
            for key in ("ours", "eager", "compiled")
        ]
        eager, compiled = ratios["eager"], ratios.get("compiled")
        aim = (
            "–"
            if case["aim"] is None
            else f"{case['aim']:.1f} {'met' if case['aim_met'] else 'missed'}"
        )
        interval = f"{eager['low']:.2f} to {eager['high']:.2f}"
        rest = [
            f"{compiled['ratio']:.2f}" if compiled else "–",
            f"{100 * ratios['copy']['ratio']:.0f} %",
        ]
        rows.append([name, *times, f"{eager['ratio']:.2f}", interval, aim, *rest])
    return table.text_table(rows)


def run() -> int:
    """Test, time, print and write; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=out_file, help="JSON file for the figures (default: printed only)"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="time only cases with TEXT in their name, and skip the tests (default: all cases)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=20,
        help="turns of each candidate; more narrow the intervals (default: 20)",
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError(
            "this benchmark needs a CUDA device, and torch finds none here. Nothing was run."
        )
    began, device = time.monotonic(), torch.device("cuda")
    os.environ.update({COMPILER_VARIABLE: "1", KERNELS_VARIABLE: "1"})
    if reason := fallback.reason_not_used(device):
        raise InputError(f"own kernels do not run on this device: {reason}. Nothing was run.")
    result: dict[str, Any] = {
        **conditions(),
        "correctness": {} if arguments.only else correctness(),
        "kernels": {},
        "not_measured": [],
    }
    for name, outcome in result["correctness"].items():
        print(f"{name}: {outcome['outcome']}", *outcome.get("lines", []), sep="\n  ", flush=True)
    for name, build in CASES.items():
        left = BUDGET_SECONDS - (time.monotonic() - began)
        if arguments.only not in name:
            continue
        if left < 10:
            result["not_measured"].append(name)
            continue
        result["kernels"][name] = timed(
            build(device, False), device, arguments.rounds, may_compile=left > COMPILATION_SECONDS
        )
        torch.cuda.empty_cache()
        if arguments.out:  # after each, so that an interrupted run keeps what it has
            write_result(arguments.out, {**result, "seconds_in_all": time.monotonic() - began})
    print(
        _table(result["kernels"]),
        *(f"not measured: {name}" for name in result["not_measured"]),
        sep="\n",
    )
    return int(
        any(
            outcome["outcome"].startswith("exit code") for outcome in result["correctness"].values()
        )
    )


if __name__ == "__main__":
    sys.exit(
        exit_code_of(
            run,
            error_prefix="kernels.py",
            interrupted="interrupted; the file of --out has what was measured, if anything was",
        )
    )
