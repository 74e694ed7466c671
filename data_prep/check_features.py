#!/usr/bin/env python3
"""Check that features of your own can be trained on.

FOLDER/train and FOLDER/val each have a manifest.tsv or Kaldi's files.

    python3 data_prep/check_features.py FOLDER --task tts_angular          # labels are speakers
    python3 data_prep/check_features.py FOLDER --task speech_transformer   # labels are transcripts
    python3 data_prep/check_features.py FOLDER --task tts_angular --full   # reads every value

Without --full, every header is read, and the values of some utterances. The check changes nothing.
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
from gallery_lib.data.folder_walk import printable
from gallery_lib.data.speech.feature_check import check_features
from gallery_lib.data.speech.feature_manifest import KaldiLabels

# Kaldi's file of labels, values a frame, the command that makes mock data, and the number of tokens
# that the model has for transcripts
TASKS: dict[str, tuple[KaldiLabels, int, str, int | None]] = {
    "tts_angular": ("utt2spk", 40, "python3 data_prep/mock_speakers.py", None),
    "speech_transformer": ("text", 80, "python3 data_prep/mock_speech.py", 4233),
}


def main() -> int:
    """Parse the command line, check the folder, and return the exit code."""
    parser = Parser(description="Check folders of acoustic features.")
    parser.add_argument("folder", type=Path, help="the folder that has train/ and val/ in it")
    parser.add_argument(
        "--task", choices=list(TASKS), required=True, help="what is to be trained on it"
    )
    parser.add_argument(
        "--dims", type=int, help="values a frame, instead of what the task's own model takes"
    )
    parser.add_argument(
        "--full", action="store_true", help="read the values of every utterance instead of some"
    )
    args = parser.parse_args()
    labels, dims, make, vocabulary = TASKS[args.task]
    make = f"{make} --out {printable(args.folder)}"
    return exit_code_of(
        lambda: print(
            check_features(
                args.folder,
                labels,
                args.dims or dims,
                make,
                full=args.full,
                vocabulary_size=vocabulary,
            )
        ),
        error_prefix="check_features",
        interrupted="check_features: interrupted",
    )


if __name__ == "__main__":
    sys.exit(main())
