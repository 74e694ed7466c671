"""Runner of a reader's own script, alone or on several processes, as a notebook's cell runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

    from gallery_lib.console.exit_code import exit_code_of
    from gallery_lib.launcher.script import run_script

    def body() -> None:
        """Run the script and show its output."""
        run_script(sys.argv[1], processes=int(sys.argv[2]) if len(sys.argv) > 2 else None)

    sys.exit(
        exit_code_of(
            body, error_prefix="error", interrupted="interrupted: the script has been ended."
        )
    )
