#!/usr/bin/env python3
"""Make mock features for speaker verification: .npy files [frames, 40], listed in manifests.

    python3 data_prep/mock_speakers.py         # 304 speakers, 1216 utterances, seconds
    python3 data_prep/mock_speakers.py --train 5000 --out my_speakers

The speakers are made up. The command may be interrupted at any time; the
same command goes on.

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
from gallery_lib.data.speech.mock_speakers import SpeakerSpec, generate

if __name__ == "__main__":
    description = "Make mock features for speaker verification."
    sys.exit(make(description, "speakers", SpeakerSpec, generate))
