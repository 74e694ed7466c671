"""Entry point of the `gallery` command that works from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

    from gallery_lib.cli.main import main

    sys.exit(main())
