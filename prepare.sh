#!/usr/bin/env bash
# Sets up the gallery: an environment in .venv from requirements.lock, a Jupyter kernel, mock data.
#
# Works from any folder, and can be interrupted and started again at any point. A second run takes
# seconds. Exit codes: 2 for something lacking or a wrong option, 1 for a failed check, otherwise
# that of the notebook or of the tests.
#
# This file finds a Python; gallery_lib/cli/prepare.py does the rest with the standard library alone.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Prints the first interpreter that is new enough: that behind a virtual environment, which may go.
find_python() {
    local candidate test='import sys; sys.exit(sys.version_info < (3, 11))'
    while IFS= read -r candidate; do
        if "$candidate" -c "$test" 2>/dev/null </dev/null; then
            "$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))'
            return
        fi
    done < <(
        type -aP python3 python3.13 python3.12 python3.11 python || true
        uv python find --no-python-downloads '>=3.11' 2>/dev/null || true
    )
}

PYTHON=$(find_python)
if [[ -z $PYTHON ]]; then
    echo "prepare.sh: this machine has no Python 3.11 or newer
    -> install one (apt-get install python3, conda install python, or uv python install 3.12)" >&2
    exit 2
fi
START='import sys; sys.path.insert(0, sys.argv[1]); from gallery_lib.cli.prepare import main'
# Executed in this script's place, so that a signal to this script reaches it.
exec "$PYTHON" -P -c "$START; sys.exit(main(*sys.argv[2:]))" "$ROOT" "$PWD" "$@"
