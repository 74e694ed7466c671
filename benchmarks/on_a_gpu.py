"""Find out on a GPU what is worth knowing, in less than ten minutes, most valuable things first.

    python3 benchmarks/on_a_gpu.py --out FOLDER --archive FILE       # writes FILE.tar too
    python3 benchmarks/on_a_gpu.py --out FOLDER --second             # what was left
    python3 benchmarks/on_a_gpu.py --out OTHER --parts steps --times 1.5

Each part has a limit in seconds, and processes that write NAME.json or NAME.xml as they go, and
NAME.log. `summary.json` has what a part took and what it did not get to, `nvidia-smi.csv` use,
clock, power, and why the clock is low, twice a second. So what was found is there when the machine
is gone. The exit code is 1 where a part failed or was ended, and 2 without a CUDA device.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import figures_file
import torch

from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import write_json
from gallery_lib.system.processes import end_supervised, start_supervised

SECONDS, SECOND = 570, 120  # of the first command at most, and of the second
PARTS = {
    "machine": 20, "kernels": 25, "compile": 75, "steps": 80, "kernel-times": 40,
    "transformers": 65, "fp16": 35, "end-to-end": 90, "graphs": 45, "tests": 50, "sanitizers": 45,
}  # fmt: skip
"""Part → its limit in seconds, the most valuable first."""
_STEPS = "{python} benchmarks/gpu_steps.py {part} --out {out}/{name}.json {tiny} --seconds {left}"
_KERNELS = "{python} benchmarks/kernels.py"
_PYTEST = (
    "{python} -m pytest -v --show-capture=no -p no:cacheprovider --junitxml={out}/{name}.xml"
    " -o 'addopts=--strict-markers --import-mode=importlib' -m gpu tests"
)
_CHECK = f"{_PYTEST}/kernels/test_on_a_device.py"
_SANITIZER = "compute-sanitizer --error-exitcode 9 --tool"
_NCU = (
    "ncu --clock-control none --csv --launch-count 12"
    " --metrics gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed,gpu__time_duration.sum"
    " --kernel-name 'regex:^(adamw|cross_entropy_rows|batch_norm_moments)$'"
)
_TRAIN = (
    "{python} launch_single_task.py --compiler-opt --no-evaluate --data_dir {images} {sizes}"
    " --run_dir {out}/{name}"
)
COMMANDS = {
    "nvidia-smi": ("machine", "nvidia-smi -q"),
    "kernels": ("kernels", _CHECK),
    **{part: (part, _STEPS) for part in ("machine", "compile", "steps", "transformers", "fp16")},
    "kernel-times": ("kernel-times", f"{_KERNELS} --out {{out}}/{{name}}.json {{tiny}}"),
    "many-workers": ("end-to-end", f"{_TRAIN} --workers {{many}} --max_steps {{long}}"),
    "one-worker": ("end-to-end", f"{_TRAIN} --workers 1 --max_steps 47"),
    "graphs": ("graphs", f"{_PYTEST}/fake_gpu/inside_graphs.py"),
    "skips": ("graphs", f"{_PYTEST}/kernels/test_in_a_run.py -k updates"),
    # Files are divided among four processes where pytest-xdist is there.
    "tests": ("tests", f"{_PYTEST}/kernels {'-n 4 --dist loadfile' if find_spec('xdist') else ''}"),
    "memcheck": ("sanitizers", f"{_SANITIZER} memcheck {_CHECK}"),
    "racecheck": ("sanitizers", f"{_SANITIZER} racecheck {_CHECK}"),
    "ncu": ("sanitizers", f"{_NCU} {_KERNELS} --once"),
}
"""Log of a command → its part, and the command."""
# Steps of a mean: 3 of warm-up, 11 × batches in flight, which are 2 of a worker and 2 copied ahead.
_RESNET = {"sizes": "--model resnet50 --batch_size 256 --image_size 224", "many": 14, "long": 333}
_SMALL = {"sizes": "--model resnet18 --batch_size 2 --image_size 32", "many": 1, "long": 47}
_STATE = "timestamp,utilization.gpu,clocks.sm,power.draw,clocks_event_reasons.active,memory.used"


def start(log: Path, command: list[str], **variables: str) -> subprocess.Popen[Any]:
    """Start a command whose output goes to a file; none of its processes outlives this one."""
    with log.open("a") as file:
        options = {"cwd": figures_file.HERE.parent, "stdout": file, "stderr": subprocess.STDOUT}
        return start_supervised(command, {"PYTHONUNBUFFERED": "1", **variables}, **options)


def link_images() -> str:
    """Return a folder whose 1000 classes, as the compiled model has, are links to the small ten."""
    root, small = paths.cache_dir() / "imagenet-linked", paths.data_dir("imagenet-small")
    for number, split in itertools.product(range(1000), ("train", "val")):
        (root / split).mkdir(parents=True, exist_ok=True)
        link = root / split / f"n{number:08d}"
        if not link.is_symlink():
            link.symlink_to(sorted((small / split).iterdir())[number % 10])
    return shlex.quote(str(root))


def run_part(part: str, out: Path, seconds: float, tiny: bool) -> dict[str, Any]:
    """Run the commands of a part, at most so long together; return what came of them."""
    began = time.monotonic()
    result: dict[str, Any] = {"began": time.strftime("%H:%M:%S"), "limit_seconds": seconds}
    result |= {"exit_codes": {}, "left": []}
    values = {"part": part, "out": shlex.quote(str(out)), "python": shlex.quote(sys.executable)}
    values |= {"tiny": "--tiny", **_SMALL} if tiny else {"tiny": "", **_RESNET}
    values["images"] = link_images() if part == "end-to-end" else ""
    for name, text in [(name, text) for name, (of, text) in COMMANDS.items() if of == part]:
        left, log = seconds - (time.monotonic() - began), out / f"{name}.log"
        command = shlex.split(text.format(name=name, left=left, **values))
        if shutil.which(command[0]) is None:
            result["left"].append(f"{name}: {command[0]} is not there")
            continue
        # With memory of its own for each tensor an access beside it is seen.
        own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if part == "sanitizers" else {}
        process = start(log, command, **own)
        try:
            result["exit_codes"][name] = process.wait(timeout=max(1.0, left))
        except subprocess.TimeoutExpired:
            result["exit_codes"][name] = None
            result["left"].append(f"{name}: ended after {left:.0f} s")
        finally:
            end_supervised(process)
        print(*log.read_text(errors="replace").splitlines()[-12:], sep="\n", flush=True)
    result["left"] += figures_file.earlier(out / f"{part}.json", "left") or []
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def run() -> int:
    """Run the parts, print and write; return 1 if one of them failed or was ended."""
    parser = figures_file.parser(__doc__, out=False)
    parser.add_argument("--out", type=Path, required=True, help="folder for files of each part")
    parser.add_argument("--archive", type=Path, help="FILE.tar has the folder after each part")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="(default: all)")
    parser.add_argument("--second", action="store_true", help="what --out says was left")
    parser.add_argument("--times", type=float, default=1.0, help="multiply all limits by this")
    parser.add_argument("--tiny", action="store_true", help="small inputs, to rehearse")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("this needs a CUDA device, and torch finds none here. Nothing was run.")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    done = figures_file.earlier(out / "summary.json", "parts") or {}
    unfinished = [part for part in PARTS if part not in done or done[part]["left"]]
    parts = options.parts or (unfinished if options.second else list(PARTS))
    end = time.monotonic() + options.times * (SECOND if options.second else SECONDS)
    os.environ["PATH"] += os.pathsep + "/usr/local/cuda/bin"
    beside = [start(out / "data.log", [sys.executable, "data_prep/mock_imagenet.py"])]
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", f"--query-gpu={_STATE}", "--format=csv", "-lms", "500"]
        beside.append(start(out / "nvidia-smi.csv", query))
    try:
        for part in parts:
            seconds = min(end - time.monotonic(), options.times * PARTS[part])
            print(f"\n{part}", flush=True)
            try:
                if seconds < 10:
                    raise TimeoutError("no time was left")
                if part == "end-to-end":
                    beside[0].wait(timeout=seconds)
                done[part] = run_part(part, out, seconds, options.tiny)
            except Exception as error:  # the other parts are run
                done[part] = {"exit_codes": {part: None}, "left": [f"{part}: {error}"]}
            print(*done[part]["left"], sep="\n", flush=True)
            write_json(out / "summary.json", {"parts": done})
            if options.archive:
                shutil.make_archive(str(options.archive), "tar", out)
    finally:
        for process in beside:
            end_supervised(process)
    return int(any(code != 0 for p in parts for code in done[p]["exit_codes"].values()))


if __name__ == "__main__":
    sys.exit(figures_file.exit_code(run))
