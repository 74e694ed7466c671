#!/usr/bin/env python3
"""Make mock speech: filter banks of utterances in a made-up language, with transcripts.

    python3 data_prep/mock_speech.py             # 980 utterances, 75 MB, some seconds
    python3 data_prep/mock_speech.py --characters 4230 --words 20000 --train 20000 --out my_speech

The second command is nearer to Mandarin. The data serves to train and to measure with. The command
may be interrupted at any time; the same command goes on.

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
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate

if __name__ == "__main__":
    sys.exit(make("Make mock speech.", "speech", SpeechSpec, generate))
