#!/usr/bin/env python3
"""Make a mock segmentation data set: 640×959 photographs as JPEG, and the masks of objects as PNG.

    python3 data_prep/mock_segmentation.py                                 # 80 images, some seconds
    python3 data_prep/mock_segmentation.py --train 5000 --out my_shapes    # more of them

The command may be interrupted at any time; the same command goes on.

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
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate

if __name__ == "__main__":
    description = "Make a mock segmentation data set."
    sys.exit(make(description, "segmentation", SegmentationSpec, generate))
