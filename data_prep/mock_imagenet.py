#!/usr/bin/env python3
"""Make mock ImageNet: JPEG files in ImageNet's own layout and of its decoding cost.

    python3 data_prep/mock_imagenet.py                                  # small, some seconds
    python3 data_prep/mock_imagenet.py --classes 100 --out my_images    # more of it

The data serves to train and to measure with: 840 images in 89 MB. ImageNet's own size is --classes
1000 --train_per_class 1300 --val_per_class 50: 1.35 million images in 145 GB, which take hours. The
command may be interrupted at any time; the same command goes on.

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

from gallery_lib.data.commands import make
from gallery_lib.data.images.mock_imagenet import MockSpec, generate

if __name__ == "__main__":
    sys.exit(make("Make mock ImageNet.", "imagenet", MockSpec, generate))
