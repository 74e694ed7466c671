#!/usr/bin/env python3
"""Check that a folder of images of your own can be trained on.

FOLDER/train/CLASS/… and FOLDER/val/CLASS/… hold images of any usual format.

    python3 data_prep/check_imagenet.py FOLDER            # layout, and a few images per class
    python3 data_prep/check_imagenet.py FOLDER --full     # decodes every image to its end

The check also names what a run would leave out: other endings, hidden and empty files, broken
links, files in no class folder. With --full a million images take minutes.

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
from gallery_lib.data.images.listing import check_image_folder

if __name__ == "__main__":
    sys.exit(
        check(
            "Check an ImageNet-like folder of images.",
            lambda args: check_image_folder(args.folder, args.full),
        )
    )
