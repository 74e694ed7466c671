#!/usr/bin/env python3
"""Make a mock segmentation data set: 640×959 photographs as JPEG, and the masks of objects as PNG.

    python3 data_prep/mock_segmentation.py                                 # 80 images, some seconds
    python3 data_prep/mock_segmentation.py --train 5000 --out my_shapes    # more of them

The data set appears as a whole or not at all; a second call finds it complete.
gallery_lib/data/images/mock_segmentation.py does the work.

Exit code 0: complete; 1: writing failed; 2: bad input; 130: Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from gallery_lib.console.exit_code import Parser, exit_code_of
from gallery_lib.console.progress import busy
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate
from gallery_lib.system import paths


def main() -> int:
    """Parse the command line, make the data, and return the exit code."""
    parser = Parser(description="Make a mock segmentation data set.")
    parser.add_argument(
        "--out",
        type=Path,
        default=paths.data_dir("segmentation-small"),
        help="folder; default: the gallery's own",
    )
    parser.add_argument(
        "--train",
        type=int,
        default=SegmentationSpec.train,
        help="training images (default: %(default)s)",
    )
    parser.add_argument(
        "--val",
        type=int,
        default=SegmentationSpec.val,
        help="held-out images (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SegmentationSpec.seed,
        help="seed of all images (default: %(default)s)",
    )
    args = parser.parse_args()

    def body() -> None:
        with busy("making images and masks", patience=1.0):
            done = generate(args.out, SegmentationSpec(args.train, args.val, args.seed))
        print(done)

    return exit_code_of(
        body,
        error_prefix="mock_segmentation",
        interrupted="mock_segmentation: interrupted; nothing was left behind",
    )


if __name__ == "__main__":
    sys.exit(main())
