"""`gallery doctor`: which techniques apply on this machine, and where a step's time went.

All that is said of a run comes from its `results.json`.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from gallery_lib import memory
from gallery_lib.compiler.passes import small_convolutions, winograd
from gallery_lib.console.text import Rows, seconds, text_table
from gallery_lib.kernels import mixed_product
from gallery_lib.measure.comparison.pair import page_faults_part
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.system import hardware
from gallery_lib.train.results import Results, hidden_wait, read_results

PHASES = {
    "input": "waiting for the batch",
    "forward": "forward pass and loss",
    "backward": "backward pass",
    "exposed_communication": "  of it communication alone",
    "optimizer": "optimizer",
}
# Shares of a step from which on a phase is worth a change.
_MUCH = {"input": 0.10, "optimizer": 0.25, "exposed_communication": 0.10, "page faults": 0.05}
_LITTLE = 0.05  # weight of a finding whose share of the step is not known


def text(folder: str | None) -> str:
    """Return the report about the runs in a folder; without a folder, about the machine."""
    if folder is None:
        return (
            f"{hardware.describe(hardware.machine_facts())}\n{platform.platform()}\n\n"
            f"{text_table(technique_rows())}"
        )
    return "\n\n".join(map(_run_text, _measured_below(Path(folder))))


def _measured_below(root: Path) -> list[Results]:
    """Return the results of a run, of a comparison, or of a notebook's folder.

    Of a comparison, its second variant counts. In the folder of a notebook, each comparison counts;
    without comparisons, each run.
    """
    files = ("comparison.json", "results.json")
    if not any((root / file).is_file() for file in files):
        for file in files:
            if inside := sorted(path.parent for path in root.rglob(file)):
                return list(map(_measured_in, inside))
    return [_measured_in(root)]


def _measured_in(folder: Path) -> Results:
    is_comparison = (folder / "comparison.json").is_file()
    return read_comparison(folder).candidate if is_comparison else read_results(folder)


def _run_text(results: Results) -> str:
    head = (
        f"{results.task}, {results.config['amp_level']}, batch size "
        f"{results.config['batch_size']}, {results.world_size} process(es)"
    )
    return "\n".join(
        [head, text_table(step_rows(results)), "", *(f"- {line}" for line in findings(results))]
    )


def step_rows(results: Results) -> Rows:
    """Return a table of where the time of a run's median step goes, phase by phase."""
    step, phases = results.step_seconds["p50"], results.phase_seconds
    rows = [["phase", "time", "of the step"]]
    rows += [
        [meaning, seconds(phases[name]), f"{phases[name] / step:.0%}"]
        for name, meaning in PHASES.items()
        if name in phases
    ]
    rows.append(["whole step", seconds(step), ""])
    if hidden_wait(step, results.sustained):
        sustained = seconds(results.sustained["step_seconds"])
        rows.append(["sustained step, with waits for data", sustained, ""])
    return rows


def findings(results: Results) -> list[str]:
    """Return what limits the run and what to change, most rewarding first.

    There is a single line when nothing stands out.
    """
    weighted = sorted(_weighted_findings(results), reverse=True)
    nothing = "nothing stands out: forward and backward pass are the work itself."
    return [line for _, line in weighted] or [nothing]


def _weighted_findings(results: Results) -> Iterator[tuple[float, str]]:
    """Yield each cause with its remedy, behind the share of the step that it takes."""
    config, facts = results.config, results.environment
    share = {n: s / results.step_seconds["p50"] for n, s in results.phase_seconds.items()}
    share["page faults"] = page_faults_part(results) if facts["device"] == "cpu" else 0.0
    much = {name: share[name] for name in share if share[name] >= _MUCH.get(name, 2.0)}
    if waits := much.get("input"):
        more = config["workers"] + 1
        remedy = f"--workers {more}" if more <= facts["cores"] else "smaller or pre-decoded data"
        yield waits, f"{waits:.0%} of the step waits for data: try {remedy}."
    if updates := much.get("optimizer"):
        ours = "" if config["compiler_opt"] else "compiler-opt (its fused optimizer), or "
        yield updates, f"{updates:.0%} of the step is the optimizer: try {ours}a larger batch."
    if exposed := much.get("exposed_communication"):
        yield (
            exposed,
            f"{exposed:.0%} of the step is communication that no computation hides: try a larger "
            "batch, or fewer processes.",
        )
    if (faults := much.get("page faults")) and not config["compiler_opt"]:
        yield (
            faults,
            f"some {faults:.0%} of the step are {results.page_faults:,.0f} page faults, for memory "
            "that was given back: try compiler-opt, which keeps it.",
        )
    o1 = config["amp_level"] == "O1" and not config["compiler_opt"]
    if o1 and hardware.emulated_bf16(facts):
        yield 1.0, "this CPU has no bfloat16 units, so O1 is emulated: use O0, or compiler-opt."
    if breaks := results.techniques.get("graph breaks"):
        yield (
            _LITTLE,
            f"the model is not one graph, compiled is what lies between breaks: {breaks}.",
        )
    if again := results.techniques.get("recompilations"):
        yield _LITTLE, f"the model was {again}."
    if (state := results.techniques.get("allocator", "")).startswith("not applied"):
        yield _LITTLE, f"the allocator technique was {state}."


def technique_rows() -> Rows:
    """Return the table of techniques: whether each applies here, else what is missing."""
    compiler, gpus, cores = hardware.cpp_compiler(), hardware.gpu_count(), hardware.cores()
    reason = memory.reason_not_applied()
    no_layout = "not used: convolutions on a CPU without AVX-512 gain nothing from it"
    layout = "applies" if hardware.prefers_channels_last(hardware.device_type()) else no_layout
    no_bf16 = "no units for it: O1 is emulated and slower than O0; compiler-opt uses the fp32 units"
    bf16 = "has units for it: O1 gains" if hardware.computes_in_bf16("cpu") else no_bf16
    return [
        ["technique", "here"],
        [
            "compiler on the CPU",
            compiler or "missing: a C++ compiler (Debian, Ubuntu: apt-get install g++)",
        ],
        ["allocator", f"does not apply: {reason}" if reason else "applies"],
        ["channels_last", layout],
        *(_ON_GPU if gpus else _of_a_step_on_cpu(has_compiler=bool(compiler))),
        ["bfloat16 on the CPU", bf16],
        ["GPU", f"{gpus}" if gpus else "none: everything for CUDA is not measured here"],
        ["own CUDA kernels", "used with compiler-opt" if gpus else "not used: no CUDA device"],
        [
            "several processes",
            f"{gpus} GPU(s)" if gpus else f"{cores} core(s), shared by all processes",
        ],
    ]


# Techniques that have one form for any GPU.
_ON_GPU = [
    ["attention", "torch's own"],
    ["dropout, masks, max pooling, products", "as the compiler writes them"],
    ["optimizer", "own kernels, else torch's fused form"],
    ["loading", "as it is: the GPU computes"],
]


def _of_a_step_on_cpu(*, has_compiler: bool) -> Rows:
    forms = {
        "attention": "over short sequences as plain products",
        "small convolutions": "in bfloat16, as matrix products",
        "3 × 3 convolutions": "in fp32, by fewer products",
        "products of few rows": "in bfloat16, by weights as they lie in fp32",
        "max pooling": "in C++",
        "dropout and masks": "by vector instructions",
        "optimizer": "in one pass",
    }
    if not has_compiler:
        forms = dict.fromkeys(forms, "torch's own: no C++ compiler")
    for name, one in {"small": small_convolutions, "3 × 3": winograd}.items():
        if has_compiler and (reason := one.reason_not_applied()):
            forms[f"{name} convolutions"] = f"torch's own: {reason}"
    if has_compiler and (products := mixed_product.reason_not_available()):
        forms["products of few rows"] = f"torch's own: {products}"
    return [
        *map(list, forms.items()),
        ["loading", "by processes of low priority, beside the step's threads"],
    ]
