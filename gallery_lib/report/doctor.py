"""Text of `gallery doctor`: techniques that apply here, where a step's time went, what to change.

All that is said of a run comes from its `results.json`. Advice follows from shares of the step, by
the rules in `advice`. Each rule names the figure that it rests on. A run on several processes is
explained beside a run on one: which part of the step takes longer than alone, and why.
"""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.compiler.passes import small_convolutions
from gallery_lib.console.table import Rows, rate, seconds, text_table
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.process_spread import page_faults_part
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.memory import allocator
from gallery_lib.system import hardware
from gallery_lib.train.results import Results, read_results

PHASES = {
    "input": "waiting for the batch",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "optimizer": "optimizer",
}
MUCH = {"input": 0.10, "optimizer": 0.25, "exposed_communication": 0.10, "page faults": 0.05}
"""Shares of a step from which on a phase is worth a change."""


# --------------------------------------------------------------------------------------------------
# The machine


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def machine_rows() -> Rows:
    """Return a table of techniques: whether each applies on this machine, else what is missing."""
    compiler = hardware.cpp_compiler()
    gpus = hardware.gpu_count()
    rows = [["technique", "here"]]
    rows.append(
        [
            "compiler on the CPU",
            compiler or "missing: a C++ compiler (Debian, Ubuntu: apt-get install g++)",
        ]
    )
    rows.append(
        [
            "allocator",
            "applies"
            if (why := allocator.reason_not_applied()) is None
            else f"does not apply: {why}",
        ]
    )
    gains = hardware.prefers_channels_last(hardware.device_type())
    rows.append(
        [
            "channels_last",
            "applies"
            if gains
            else "not used: convolutions on a CPU without AVX-512 gain nothing from it",
        ]
    )
    if gpus:
        rows.append(["attention", "torch's own"])
        rows.append(["optimizer", "own kernels, else torch's fused form"])
        rows.append(["loading", "as it is: the GPU computes"])
    else:
        rows.append(
            [
                "attention",
                "over short sequences as plain products"
                if compiler
                else "torch's own: no C++ compiler",
            ]
        )
        why = "no C++ compiler" if compiler is None else small_convolutions.reason_not_applied()
        rows.append(
            [
                "small convolutions",
                "in bfloat16, as matrix products" if why is None else f"torch's own: {why}",
            ]
        )
        rows.append(
            [
                "optimizer",
                "in one pass"
                if compiler
                else "torch's own, fused where it has such a form: no C++ compiler",
            ]
        )
        rows.append(["loading", "by processes of low priority, beside the step's threads"])
    preloaded = ", ".join(allocator.installed())
    rows.append(
        [
            "another allocator",
            f"found: {preloaded}; used when LD_PRELOAD names it"
            if preloaded
            else "none found: glibc's is used",
        ]
    )
    if hardware.computes_in_bf16("cpu"):
        rows.append(["bfloat16 on the CPU", "has units for it: O1 gains"])
    else:
        rows.append(
            [
                "bfloat16 on the CPU",
                (
                    "no units for it: O1 is emulated and slower than O0; compiler-opt computes it "
                    "on the fp32 units"
                ),
            ]
        )
    rows.append(["GPU", f"{gpus}" if gpus else "none: everything for CUDA is not measured here"])
    rows.append(
        ["own CUDA kernels", "used with compiler-opt" if gpus else "not used: no CUDA device"]
    )
    rows.append(
        [
            "several processes",
            f"{gpus} GPU(s)" if gpus else f"{hardware.cores()} core(s), shared by all processes",
        ]
    )
    rows.append(
        [
            "TensorBoard log",
            "available" if _has("tensorboard") else "missing: pip install tensorboard",
        ]
    )
    return rows


def machine_text() -> str:
    """Return a description of this machine, and which techniques apply on it."""
    return (
        f"{hardware.describe(hardware.environment())}\n{platform.platform()}\n\n"
        f"{text_table(machine_rows())}"
    )


# --------------------------------------------------------------------------------------------------
# A run


def shares(results: Results) -> dict[str, float]:
    """Return each phase's share of the median step.

    `exposed_communication` is a part of `backward`.
    """
    step = results.step_seconds["p50"]
    return {name: value / step for name, value in results.phase_seconds.items()}


def step_rows(results: Results) -> Rows:
    """Return a table of where the time of a run's median step goes, phase by phase."""
    part = shares(results)
    rows = [["phase", "time", "of the step"]]
    for name, meaning in PHASES.items():
        if name in part:
            rows.append([meaning, seconds(results.phase_seconds[name]), f"{part[name]:.0%}"])
            if name == "backward" and "exposed_communication" in part:
                exposed = results.phase_seconds["exposed_communication"]
                rows.append(
                    [
                        "  of it communication alone",
                        seconds(exposed),
                        f"{part['exposed_communication']:.0%}",
                    ]
                )
    rows.append(["whole step", seconds(results.step_seconds["p50"]), ""])
    return rows


def advice(results: Results) -> list[str]:
    """Return what limits the run and what to change, most rewarding first.

    There is a single line when nothing stands out.
    """
    part = shares(results)
    config, environment = results.config, results.environment
    found: list[tuple[float, str]] = []
    if (wait := part.get("input", 0.0)) >= MUCH["input"]:
        remedy = (
            f"--workers {config['workers'] + 1}"
            if config["workers"] < environment["cores"]
            else "smaller or pre-decoded data"
        )
        found.append((wait, f"{wait:.0%} of the step waits for data: try {remedy}."))
    if (update := part.get("optimizer", 0.0)) >= MUCH["optimizer"]:
        remedy = (
            "a larger batch"
            if config["compiler_opt"]
            else "compiler-opt (its fused optimizer), or a larger batch"
        )
        found.append(
            (
                update,
                (
                    f"{update:.0%} of the step is the optimizer, which costs the same for any "
                    f"batch: try {remedy}."
                ),
            )
        )
    if (exposed := part.get("exposed_communication", 0.0)) >= MUCH["exposed_communication"]:
        found.append(
            (
                exposed,
                (
                    f"{exposed:.0%} of the step is communication that no computation hides: a "
                    "larger batch, or fewer processes."
                ),
            )
        )
    if (
        not config["compiler_opt"]
        and environment["device"] == "cpu"
        and (faults := page_faults_part(results)) >= MUCH["page faults"]
    ):
        what = f"{results.page_faults:,.0f} page faults, for memory that was given back"
        found.append(
            (faults, f"some {faults:.0%} of the step are {what}: try compiler-opt, which keeps it.")
        )
    if (
        config["amp_level"] == "O1"
        and hardware.emulated_bf16(environment)
        and not config["compiler_opt"]
    ):
        found.append(
            (1.0, "this CPU has no bfloat16 units, so O1 is emulated: use O0, or compiler-opt.")
        )
    if (breaks := results.techniques.get("graph breaks")) is not None:
        found.append(
            (
                0.05,
                (
                    "the model is not one graph, and what is between the breaks is compiled: "
                    f"{breaks}."
                ),
            )
        )
    if results.techniques.get("allocator", "").startswith("not applied"):
        found.append((0.05, f"the allocator technique was {results.techniques['allocator']}."))
    if not found:
        return ["nothing stands out: forward and backward pass are the work itself."]
    return [text for _, text in sorted(found, reverse=True)]


def run_text(run_dir: Path | str) -> str:
    """Return where the step of each run in `run_dir` went, and what to change.

    Raises InputError when nothing was measured there.
    """
    return "\n\n".join(_step_text(results) for results in measured_below(run_dir))


def _step_text(results: Results) -> str:
    head = (
        f"{results.task}, {results.config['amp_level']}, batch size "
        f"{results.config['batch_size']}, {results.world_size} process(es)"
    )
    return "\n".join(
        [head, text_table(step_rows(results)), "", *(f"- {line}" for line in advice(results))]
    )


# --------------------------------------------------------------------------------------------------
# Several processes against one


def measured_in(folder: Path | str) -> Results:
    """Return the results of a run; for a comparison, those of its second variant.

    Raises InputError when there are none.
    """
    comparison = Path(folder) / "comparison.json"
    if not comparison.is_file():
        return read_results(folder)
    return read_comparison(folder).candidate


def measured_below(folder: Path | str) -> list[Results]:
    """Return the results of a run, of a comparison, or of a notebook's folder.

    In the folder of a notebook, each comparison counts; without comparisons, each run.
    """
    root, files = Path(folder), ("comparison.json", "results.json")
    if not any((root / file).is_file() for file in files):
        for file in files:
            if inside := sorted(path.parent for path in root.rglob(file)):
                return [measured_in(path) for path in inside]
    return [measured_in(root)]


def longer_by(one: Results, several: Results) -> dict[str, float]:
    """Return by how many seconds each part of a step on several processes takes longer.

    Each part is compared with the same part alone, for as many samples. `computing` is forward and
    backward pass without exposed communication, which is `communication`. Computation grows with
    the batch; the optimizer's step does not.
    """
    more = several.config["batch_size"] / one.config["batch_size"]
    alone, beside = one.phase_seconds, several.phase_seconds
    communication = beside.get("exposed_communication", 0.0)
    passes = [
        sum(phases.get(name, 0.0) for name in ("forward", "backward")) for phases in (alone, beside)
    ]
    return {
        "computing": passes[1] - communication - more * passes[0],
        "communication": communication,
        "input": beside.get("input", 0.0) - more * alone.get("input", 0.0),
        "optimizer": beside.get("optimizer", 0.0) - alone.get("optimizer", 0.0),
    }


def _causes(one: Results, several: Results) -> dict[str, str]:
    """Return the cause behind each part of `longer_by`, and what to change."""
    n, on_cpu = several.world_size, several.environment["device"] == "cpu"
    threads, cores = several.config["threads"], several.environment["cores"]
    if on_cpu:
        shared = (
            f"{n} processes share the {cores} cores ({threads} thread(s) each, "
            f"{one.config['threads']} alone), and memory and caches with them. One process with "
            "all cores is the most that this host gives: add hosts or GPUs, not processes"
        )
    else:
        shared = (
            "the devices slow one another down: power, temperature, or too few host threads to "
            "feed them"
        )
    return {
        "computing": shared,
        "communication": (
            "gradients are averaged while nothing is left to compute: a larger batch, no_sync() "
            "over several batches, or fewer processes"
        ),
        "input": (
            f"the loaders of {n} processes share {cores} cores: fewer --workers each, or data that "
            "is cheaper to read"
        ),
        "optimizer": "every process updates all parameters, whatever the batch: a larger batch",
    }


def several_text(one_dir: Path | str, several_dir: Path | str) -> str:
    """Return why the run on several processes is as fast as it is, beside the one on one process.

    Both are folders of runs, of comparisons or of notebooks; a folder that holds both may be given
    twice. Raises InputError when the folders hold no two runs of the same task.
    """
    ones = [results for results in measured_below(one_dir) if results.world_size == 1]
    pairs = [
        (one, more)
        for more in measured_below(several_dir)
        for one in ones
        if more.world_size > 1 and one.task == more.task
    ]
    if not pairs:
        raise InputError("give the run on one process first, then one of the same task on several.")
    one, several = pairs[0]
    n = several.world_size
    rates = one.samples_per_second["global"], several.samples_per_second["global"]
    gain = rates[1] / rates[0]
    # On a CPU, n processes have the cores of one, so an n-fold gain is no yardstick.
    shared = several.environment["device"] == "cpu"
    efficiency = "on the same cores" if shared else f"scaling efficiency {gain / n:.0%}"
    lines = [
        (
            f"{one.task}: {rate(rates[0])} on one process, {rate(rates[1])} on {n}: {gain:.2f}× "
            f"({efficiency})"
        )
    ]
    rows = [["phase", "1 process", f"{n} processes"]]
    for name, meaning in {**PHASES, "exposed_communication": "  of it communication alone"}.items():
        a, b = one.phase_seconds.get(name), several.phase_seconds.get(name)
        if a is not None or b is not None:
            rows.append([meaning, "" if a is None else seconds(a), "" if b is None else seconds(b)])
    sizes = one.config["batch_size"], several.config["batch_size"]
    rows.append(["batch size of a process", str(sizes[0]), str(sizes[1])])
    lines.append(text_table(rows))
    longer = {
        name: value
        for name, value in longer_by(one, several).items()
        if value > 0.02 * several.step_seconds["p50"]
    }
    if not longer:
        return "\n".join([*lines, "- No part of the step takes longer than alone."])
    total = sum(longer.values())
    lines.append(
        f"A step on {n} takes {seconds(total)} longer than the same samples alone, because of"
    )
    causes = _causes(one, several)
    for name, value in sorted(longer.items(), key=lambda item: -item[1]):
        lines.append(f"- {name}, {seconds(value)} ({value / total:.0%}): {causes[name]}.")
    return "\n".join(lines)


def text(folders: Sequence[str]) -> str:
    """Return the report for no folder, one folder or two.

    Without a folder it is about the machine, with one about a run, with two about one process
    against several. Raises InputError for more than two.
    """
    if len(folders) > 2:
        raise InputError("usage: gallery doctor [RUN [RUN_ON_SEVERAL_PROCESSES]]")
    if not folders:
        return machine_text()
    return run_text(folders[0]) if len(folders) == 1 else several_text(folders[0], folders[1])
