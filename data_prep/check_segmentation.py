#!/usr/bin/env python3
"""Check that a segmentation folder of your own can be trained on.

FOLDER/train/images/NAME.jpg belongs to FOLDER/train/masks/NAME.png; FOLDER/val is laid out
likewise.

    python3 data_prep/check_segmentation.py FOLDER            # layout, and some images and masks
    python3 data_prep/check_segmentation.py FOLDER --full     # reads all of them

The check changes nothing. Exit code 0: fine; 2: not, with what is wrong, where, and what to do;
130: Ctrl-C.
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
from gallery_lib.data.images.segmentation_check import check_segmentation_folder


def main() -> int:
    """Parse the command line, check the folder, and return the exit code."""
    parser = Parser(description="Check a folder of images and masks.")
    parser.add_argument("folder", type=Path, help="the folder that has train/ and val/ in it")
    parser.add_argument(
        "--full", action="store_true", help="read every image and mask instead of some"
    )
    args = parser.parse_args()
    return exit_code_of(
        lambda: print(check_segmentation_folder(args.folder, args.full)),
        error_prefix="check_segmentation",
        interrupted="check_segmentation: interrupted",
    )


if __name__ == "__main__":
    sys.exit(main())
