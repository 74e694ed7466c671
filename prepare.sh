#!/usr/bin/env bash
# Sets up the gallery: an environment in .venv from requirements.lock, a Jupyter kernel, mock data.
# In a checkout of another user all of it goes to folders of one's own.
#
# Works from any folder, and can be interrupted and started again at any point: an environment
# counts as made only once its stamp file is written, last. A second run takes seconds. Exit codes:
# 2 for something lacking or a wrong option, 1 for a failed check, otherwise that of the notebook
# or of the tests.
#
# This file finds a Python. gallery_lib/cli/preparation does the rest, with the standard library
# alone. Runs with the bash 3.2 of macOS.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Prints a flag and the path of an interpreter; fails for one older than 3.11.
# - The flag says whether it was compiled with the optimisations of distributions, which pyenv for
#   one leaves out, and has the headers that torch.compile needs or can get them by apt. Without
#   optimisations all of a start that is Python takes a fifth longer.
# - The path is that of the interpreter behind a virtual environment.
PROBE='
import os, shutil, sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in options
headers = os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h"))
headers = headers or os.geteuid() == 0 and shutil.which("apt-get") is not None
print(int(optimised and headers), getattr(sys, "_base_executable", sys.executable))
'

# The interpreters on PATH, best guess first.
interpreters() {
    type -aP python3 python3.13 python3.12 python3.11 python || true
    uv python find --no-python-downloads '>=3.11' 2>/dev/null || true
}

# Prints the interpreter that environments are made from: the first with the flag, else the first.
find_python() {
    local candidate line first=
    while IFS= read -r candidate; do
        line=$("$candidate" -c "$PROBE" 2>/dev/null </dev/null) || continue
        first=${first:-${line#* }}
        if [[ $line == 1* ]]; then
            first=${line#* }
            break
        fi
    done < <(interpreters)
    echo "$first"
}

if [[ " $* " == *" --into-current "* ]]; then
    PYTHON=$(python3 -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' || true)
    LACKING="the active python3 is missing or older than 3.11
        -> activate another environment, or leave --into-current away"
else
    PYTHON=$(find_python)
    LACKING="no Python 3.11 or newer
        -> install one (apt-get install python3, conda install python, or uv python install 3.12)"
fi
if [[ -z $PYTHON ]]; then
    printf 'prepare.sh: this machine lacks something:\n    %s\n' "$LACKING" >&2
    exit 2
fi
# Executed in this script's place, so that a signal to this script reaches it.
exec "$PYTHON" -P "$ROOT/gallery_lib/cli/preparation/__main__.py" "$ROOT" "$PWD" "$@"
