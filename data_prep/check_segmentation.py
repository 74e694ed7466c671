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

from gallery_lib.data.commands import check
from gallery_lib.data.images.listing import check_segmentation_folder

if __name__ == "__main__":
    sys.exit(
        check(
            "Check a folder of images and masks.",
            lambda args: check_segmentation_folder(args.folder, args.full),
        )
    )
