"""Train one task from the command line, over torchrun.

    python launch_single_task.py --nproc_per_node=1 --amp_level=O1 --batch_size=128 --compiler-opt

A Python that cannot run the gallery is replaced by that of the environment of prepare.sh.
"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends it at once

from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # a checkout works without being installed

from gallery_lib.system.prepared_python import run_in_prepared_environment

if __name__ == "__main__":
    run_in_prepared_environment()

    from gallery_lib.cli.main import launch_single_task

    sys.exit(launch_single_task(sys.argv[1:]))
