#!/usr/bin/env python3
"""Make tokenised text for the language models: two sub-word vocabularies, and the text in each.

    python3 data_prep/text.py                       # English that every machine has, some seconds
    python3 data_prep/text.py --data_dir FOLDER     # your own .txt files (UTF-8), below FOLDER

The English text takes a few MB. What is there already stays. Other files than .txt are counted and
named.

A task with FOLDER as its data_dir finds what this command made of it. Without this command the task
makes the same itself, more slowly. Nothing is downloaded. gallery_lib/data/text.py does the
work.

Exit code 0: it is there; 1: writing failed; 2: bad input; 130: Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path

# A checkout works without being installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

from gallery_lib.data.commands import run
from gallery_lib.data.text import prepare

OPERANDS = {
    "--data-dir": {
        "type": Path,
        "help": "folder of .txt files; default: English of Python's standard library",
    },
    "--out": {
        "type": Path,
        "help": "folder to write; default: where the gallery looks for this text",
    },
}

if __name__ == "__main__":
    description = "Make tokenised text for the language models."
    sys.exit(run(description, lambda given: prepare(given.data_dir, given.out), operands=OPERANDS))
