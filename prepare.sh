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

# Prints whether an interpreter was compiled with the optimisations of distributions, and the path
# of the one behind a virtual environment; fails for one older than 3.11. Without optimisations,
# which pyenv leaves out, all of a start that is Python takes a fifth longer.
PROBE='
import sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
print(int(sys.base_prefix == "/usr" or "--enable-optimizations" in options), end=" ")
print(getattr(sys, "_base_executable", sys.executable))
'

# Prints the interpreter that environments are made from: the first optimised one, else the first.
find_python() {
    local candidate line first=
    while IFS= read -r candidate; do
        line=$("$candidate" -c "$PROBE" 2>/dev/null </dev/null) || continue
        first=${first:-${line#* }}
        if [[ $line == 1* ]]; then
            first=${line#* }
            break
        fi
    done < <(
        type -aP python3 python3.13 python3.12 python3.11 python || true
        uv python find --no-python-downloads '>=3.11' 2>/dev/null || true
    )
    echo "$first"
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
