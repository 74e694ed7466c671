#!/usr/bin/env python3
"""Make mock speech: filter banks of utterances in a made-up language, with transcripts.

    python3 data_prep/mock_speech.py             # 980 utterances, 75 MB, some seconds
    python3 data_prep/mock_speech.py --characters 4230 --words 20000 --train 20000 --out my_speech

The second command is nearer to Mandarin. The data serves to train and to measure with. The command
may be interrupted at any time: the folder appears when it is complete.
gallery_lib/data/speech/mock_speech.py does the work.

Exit code 0: it is there; 1: writing failed; 2: bad input; 130: Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from gallery_lib.console.exit_code import Parser, exit_code_of
from gallery_lib.console.progress import busy
from gallery_lib.data.speech.mock_speech import SpeechSpec, generate
from gallery_lib.system import paths


def main() -> int:
    """Parse the command line, make the data, and return the exit code."""
    default = SpeechSpec()
    parser = Parser(description="Make mock speech.")
    parser.add_argument("--out", type=Path, help="folder; default: where the gallery looks for it")
    parser.add_argument(
        "--characters",
        type=int,
        help=f"characters of the language, 2 to 4230 (default: {default.characters})",
    )
    parser.add_argument(
        "--words", type=int, help=f"words of the language (default: {default.words})"
    )
    parser.add_argument("--train", type=int, help=f"training utterances (default: {default.train})")
    parser.add_argument("--val", type=int, help=f"held-out utterances (default: {default.val})")
    parser.add_argument(
        "--seed", type=int, help=f"seed of language and utterances (default: {default.seed})"
    )
    values = vars(parser.parse_args())
    root = values.pop("out") or paths.data_dir("speech-small")

    def body() -> None:
        with busy("making mock speech", patience=1.0):
            done = generate(
                root,
                dataclasses.replace(
                    default, **{name: value for name, value in values.items() if value is not None}
                ),
            )
        print(done)

    return exit_code_of(
        body,
        error_prefix="mock_speech",
        interrupted=f"mock_speech: interrupted; {root} was not made",
    )


if __name__ == "__main__":
    sys.exit(main())
