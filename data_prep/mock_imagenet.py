#!/usr/bin/env python3
"""Make mock ImageNet: JPEG files in ImageNet's own layout and of its decoding cost.

    python3 data_prep/mock_imagenet.py                                  # small, some seconds
    python3 data_prep/mock_imagenet.py --preset imagenet-sized          # hours
    python3 data_prep/mock_imagenet.py --classes 100 --out my_images    # in between
    python3 data_prep/mock_imagenet.py --verify         # is what is there still what was made?

The data serves to train and to measure with. The small preset has 840 images in 89 MB, the
ImageNet-sized one 1.35 million in 145 GB. The command may be interrupted at any time; the same
command goes on. gallery_lib/data/images/mock_imagenet.py does the work.

Exit code 0: complete; 1: verify found problems, or writing failed; 2: bad input; 130: Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from gallery_lib.console.exit_code import Parser, exit_code_of
from gallery_lib.data.images.mock_imagenet import PRESETS, generate, verify
from gallery_lib.system import paths


def main() -> int:
    """Parse the command line, make or verify the data, and return the exit code."""
    parser = Parser(description="Make mock ImageNet, or verify what was made.")
    parser.add_argument(
        "--out", type=Path, help="folder; default: where the gallery looks for this preset's data"
    )
    parser.add_argument(
        "--preset",
        choices=list(PRESETS),
        default="small",
        help="number of classes and images (default: small)",
    )
    parser.add_argument(
        "--classes", type=int, help="number of classes, 2 to 1000, instead of the preset's"
    )
    parser.add_argument(
        "--train-per-class", type=int, help="training images per class, instead of the preset's"
    )
    parser.add_argument(
        "--val-per-class", type=int, help="validation images per class, instead of the preset's"
    )
    parser.add_argument("--seed", type=int, help="seed of all images (default: 0)")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read everything and report what is missing or changed; makes nothing",
    )
    args = parser.parse_args()

    root = args.out or paths.data_dir("imagenet-small" if args.preset == "small" else args.preset)

    def body() -> int:
        if args.verify:
            return _verify(root)
        changes = {
            name: getattr(args, name)
            for name in ("classes", "train_per_class", "val_per_class", "seed")
        }
        spec = dataclasses.replace(
            PRESETS[args.preset],
            **{name: value for name, value in changes.items() if value is not None},
        )
        done = generate(root, spec, args.workers)
        state = (
            f"{done.made} of them made now in {done.seconds:.1f} s"
            if done.made
            else "complete already"
        )
        print(f"{done.root}: {done.images} images, {state}")
        return 0

    interrupted = f"mock_imagenet: interrupted; run it again to go on. Folder: {root}"
    return exit_code_of(body, error_prefix="mock_imagenet", interrupted=interrupted)


def _verify(root: Path) -> int:
    problems = verify(root)
    print("\n".join(problems) or f"{root}: every image is as it was made")
    if problems:
        print(
            f"mock_imagenet: {len(problems)} problems in {root}. "
            "Remove what is altered or extra, then make it again.",
            file=sys.stderr,
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
