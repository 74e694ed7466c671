#!/usr/bin/env python3
"""Make mock features for speaker verification: .npy files [frames, 40], listed in manifests.

    python3 data_prep/mock_speakers.py         # 304 speakers, 1216 utterances, seconds
    python3 data_prep/mock_speakers.py --train 5000 --out my_speakers

The speakers are made up. The data set appears as a whole or not at all; a second call finds it
complete. gallery_lib/data/speech/mock_speakers.py does the work.

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

from gallery_lib.console.exit_code import Parser, exit_code_of
from gallery_lib.console.progress import busy
from gallery_lib.data.speech.mock_speakers import SpeakerSpec, generate
from gallery_lib.system import paths


def main() -> int:
    """Parse the command line, make the data, and return the exit code."""
    parser = Parser(description="Make mock features for speaker verification.")
    parser.add_argument(
        "--out",
        type=Path,
        default=paths.data_dir("speakers-small"),
        help="folder; default: the gallery's own",
    )
    parser.add_argument(
        "--train",
        type=int,
        default=SpeakerSpec.train,
        help="speakers to train on (default: %(default)s)",
    )
    parser.add_argument(
        "--val",
        type=int,
        default=SpeakerSpec.val,
        help="other speakers, held out (default: %(default)s)",
    )
    parser.add_argument(
        "--utterances",
        type=int,
        default=SpeakerSpec.utterances,
        help="of each speaker (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SpeakerSpec.seed,
        help="seed of everything (default: %(default)s)",
    )
    args = parser.parse_args()

    def body() -> None:
        with busy("making mock speakers", patience=1.0):
            done = generate(args.out, SpeakerSpec(args.train, args.val, args.utterances, args.seed))
        print(done)

    return exit_code_of(
        body,
        error_prefix="mock_speakers",
        interrupted="mock_speakers: interrupted; nothing was left behind",
    )


if __name__ == "__main__":
    sys.exit(main())
