#!/usr/bin/env python3
"""Check that features of your own can be trained on.

FOLDER/train and FOLDER/val each have a manifest.tsv.

    python3 data_prep/check_features.py FOLDER --task tts_angular          # labels are speakers
    python3 data_prep/check_features.py FOLDER --task speech_transformer   # labels are transcripts
    python3 data_prep/check_features.py FOLDER --task tts_angular --full   # reads every value

Without --full some of the files are read. The check changes nothing.
Exit code 0: fine; 2: not, with what is wrong, where, and what to do; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from gallery_lib.data.commands import check
from gallery_lib.data.folders import printable
from gallery_lib.data.speech.features import check_features

# values a frame, the command that makes mock data, and the number of tokens that the model has for
# transcripts; None: labels are speakers
TASKS: dict[str, tuple[int, str, int | None]] = {
    "tts_angular": (40, "python3 data_prep/mock_speakers.py", None),
    "speech_transformer": (80, "python3 data_prep/mock_speech.py", 4233),
}


def _summary(args: argparse.Namespace) -> object:
    dims, make, vocabulary = TASKS[args.task]
    make = f"{make} --out {printable(args.folder)}"
    return check_features(
        args.folder, args.dims or dims, make, full=args.full, vocabulary_size=vocabulary
    )


if __name__ == "__main__":
    task = {"choices": list(TASKS), "required": True, "help": "what is to be trained on it"}
    dims = {"type": int, "help": "values a frame, instead of what the task's own model takes"}
    sys.exit(check("Check folders of acoustic features.", _summary, task=task, dims=dims))
