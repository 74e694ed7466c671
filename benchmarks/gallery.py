"""Run the notebooks with papermill, one after another, and write down what came out.

    python benchmarks/gallery.py --out benchmarks/results/gallery-MACHINE.json [--only resnet50 …] [--thumbnails]

Each notebook runs with its default parameters, unless `-p NAME VALUE` gives others, in the environment that runs this
script. The table in `notebooks/index.ipynb` is made from the file. What is in the file for other notebooks is kept.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from common import conditions, write_result
from PIL import Image

from gallery_lib import paths

ROOT = Path(__file__).resolve().parent.parent
THUMBNAILS = ROOT / "docs" / "images" / "thumbnails"
THUMBNAIL_PIXELS = (240, 160)


def problem_of(executed: Path, exit_code: int) -> str | None:
    """Why the notebook does not count as having run, from its exit code, its cells and their outputs; None when it has."""
    if not executed.exists():
        return f"papermill ended with exit code {exit_code} before anything ran"
    cells = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    for cell in cells:
        for output in cell.outputs:
            if output.output_type == "error":
                return f"{output.ename}: {output.evalue}"[:300]
    never_ran = sum(cell.execution_count is None for cell in cells)
    if never_ran:
        return f"{never_ran} cells never ran"
    return f"papermill ended with exit code {exit_code}" if exit_code else None


def thumbnail(executed: Path, target: Path) -> None:
    """The picture of what the model has learned, else the notebook's last one, made small."""
    pictures = []
    for cell in nbformat.read(executed, as_version=4).cells:
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                pictures.append(("show_predictions" in cell.source, png))
    if not pictures:
        return
    chosen = next((png for wanted, png in pictures if wanted), pictures[0][1])
    image = Image.open(io.BytesIO(base64.b64decode(chosen))).convert("RGB")
    image.thumbnail((2 * THUMBNAIL_PIXELS[0], 2 * THUMBNAIL_PIXELS[1]))
    target.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(64).save(target, optimize=True)


def one(name: str, parameters: list[str], folder: Path) -> dict[str, Any]:
    """Run one notebook; its duration, what went wrong if anything did, and the verdicts of its comparisons."""
    folder.mkdir(parents=True)
    executed = folder / f"{name}.ipynb"
    began = time.time()
    command = [sys.executable, "-m", "papermill", str(ROOT / "notebooks" / f"{name}.ipynb"), str(executed), *parameters]
    with (folder / "papermill.txt").open("w") as log:
        run = subprocess.run(
            [*command, "--cwd", str(ROOT / "notebooks")],
            stdout=log,
            stderr=log,
            env={**os.environ, "GALLERY_RUNS_DIR": str(folder)},
            check=False,
        )
    seconds = time.time() - began
    problem = problem_of(executed, run.returncode)
    comparisons = []
    for path in sorted(folder.rglob("comparison.json")):
        values = json.loads(path.read_text())
        variants = list(values["variants"].values())
        comparisons.append(
            {
                "processes": variants[0]["world_size"],
                "amp_level": variants[0]["config"]["amp_level"],
                "verdict": values["verdict"],
                "speedup": values["speedup"],
                "parity_passed": values["parity"]["passed"],
                "break_even_steps": values["break_even_steps"],
                "metrics": {variant: results["metrics"] for variant, results in values["variants"].items()},
                "chance": values["chance"],
            }
        )
    return {"seconds": round(seconds, 1), "problem": problem, "comparisons": comparisons}


def main() -> int:
    """Run them and write the file after each; exit code 1 when one did not run through."""
    known = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=known, default=[n for n in known if n != "index"], help="some notebooks only")
    parser.add_argument("-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"), help="a parameter, for all of them")
    parser.add_argument("--thumbnails", action="store_true", help=f"also write pictures to {THUMBNAILS.relative_to(ROOT)}")
    parser.add_argument("--out", type=Path, help="JSON file to write or bring up to date")
    arguments = parser.parse_args()
    parameters = [word for pair in arguments.p for word in ("-p", *pair)]
    kept = json.loads(arguments.out.read_text())["notebooks"] if arguments.out and arguments.out.exists() else {}
    folder = paths.new_run_dir("gallery")
    failed = 0
    for name in arguments.only:
        result = one(name, parameters, folder / name)
        failed += result["problem"] is not None
        ratios = [
            f"{c['processes']} process(es): {c['verdict']}" + (f" {c['speedup']['ratio']:.2f}×" if c["speedup"] else "")
            for c in result["comparisons"]
        ]
        print(f"{name:26} {result['seconds']:6.0f} s  {result['problem'] or 'ran'}  {'; '.join(ratios)}", flush=True)
        if arguments.thumbnails and result["problem"] is None:
            thumbnail(folder / name / f"{name}.ipynb", THUMBNAILS / f"{name}.png")
        kept[name] = {**result, "date": time.strftime("%Y-%m-%d")}
        if arguments.out:
            write_result(arguments.out, {**conditions(), "parameters": dict(arguments.p), "notebooks": dict(sorted(kept.items()))})
    print(f"executed notebooks: {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
