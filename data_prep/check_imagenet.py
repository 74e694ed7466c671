#!/usr/bin/env python3
"""Check that a folder of images of your own can be trained on.

FOLDER/train/CLASS/… and FOLDER/val/CLASS/… hold images of any usual format.

    python3 data_prep/check_imagenet.py FOLDER            # layout, and a few images per class
    python3 data_prep/check_imagenet.py FOLDER --full     # decodes every image to its end

The check also names what a run would leave out: other endings, hidden and empty files, broken
links, files in no class folder. It changes nothing. With --full a million images take minutes.

Exit code 0: fine; 2: not, with what is wrong, where, and what to do; 130: Ctrl-C.
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
from gallery_lib.data.images.folder_check import check_image_folder


def main() -> int:
    """Parse the command line, check the folder, and return the exit code."""
    parser = Parser(description="Check an ImageNet-like folder of images.")
    parser.add_argument("folder", type=Path, help="the folder that has train/ and val/ in it")
    parser.add_argument("--split", choices=["train", "val"], help="check this split alone")
    parser.add_argument(
        "--full", action="store_true", help="decode every image instead of a few per class"
    )
    args = parser.parse_args()
    return exit_code_of(
        lambda: print(check_image_folder(args.folder, args.split, args.full, progress=True)),
        error_prefix="check_imagenet",
        interrupted="check_imagenet: interrupted",
    )


if __name__ == "__main__":
    sys.exit(main())
