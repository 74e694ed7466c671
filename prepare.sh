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

START_FOLDER=$PWD
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$ROOT"

usage() {
    cat <<'TEXT'
Usage: bash prepare.sh [options]

Makes the environment .venv from requirements.lock, registers the Jupyter kernel "Gallery" in it,
and makes mock data. What is there already is kept, so that a second run takes seconds.

  --run NOTEBOOK     also execute notebooks/NOTEBOOK.ipynb and print what it measured; the executed
                     notebook and its results go to a new folder in runs/notebooks/
  -p NAME VALUE      with --run: set a parameter of the notebook. It is checked before anything is
                     made; may be repeated
  --lab              afterwards start JupyterLab with copies of the notebooks, in my_notebooks/; it
                     listens on this machine alone and asks for a token
  --test             also install the tools for development (as root, Debian's chromium, iproute2,
                     slurm-wlm and munge too), then run every check and all tests but those for a
                     GPU
  --into-current     install what is missing into the active environment instead of .venv, and leave
                     its torch at the version it has
  --data PRESET      mock data to make: small (default) or imagenet-sized
  --lock             only write requirements.lock anew from pyproject.toml; pins are kept where they
                     still fit
  --help             show this text

Afterwards:  bash prepare.sh --lab  (JUPYTER_PORT and JUPYTER_TOKEN choose port and token)
TEXT
}

# interrupted CODE: only until Python takes over, which ends in the same way.
interrupted() {
    echo "prepare.sh: interrupted. The same command goes on from here." >&2
    exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM

# --------------------------------------------------------------------------------------------------
# The interpreter

# Prints two flags and the path of an interpreter; fails for one older than 3.11.
# - Whether it was compiled with the optimisations that distributions compile it with. pyenv, for
#   one, leaves them out by default. All of a start that is Python then takes a fifth longer.
# - Whether it has the headers that torch.compile needs.
# - The path is that of the interpreter behind a virtual environment.
PROBE='
import os, sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit(1)
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
optimised = sys.base_prefix == "/usr" or "--enable-optimizations" in options
headers = os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h"))
print("%d %d %s" % (optimised, headers, getattr(sys, "_base_executable", sys.executable)))
'

# probe INTERPRETER: sets OPTIMISED, HEADERS and INTERPRETER; fails for one that will not do.
probe() {
    local line
    line=$("$1" -c "$PROBE" 2>/dev/null </dev/null) || return 1
    read -r OPTIMISED HEADERS INTERPRETER <<<"$line"
}

# The interpreters on PATH, best guess first.
interpreters() {
    type -aP python3 python3.13 python3.12 python3.11 python || true
    uv python find --no-python-downloads '>=3.11' 2>/dev/null || true
}

can_apt() { [[ $EUID == 0 ]] && command -v apt-get >/dev/null; }

has_compiler() {
    command -v "${CXX:-g++}" >/dev/null ||
        { [[ $(uname) == Darwin ]] && command -v clang++ >/dev/null; }
}

# Sets PYTHON, the interpreter that environments are made from: the first optimised one that
# torch.compile can work with, else the first. SKIPPED is one before it that is not optimised.
find_python() {
    local candidate first=
    PYTHON=
    SKIPPED=
    while IFS= read -r candidate; do
        if ! probe "$candidate"; then continue; fi
        if [[ -z $first ]]; then first=$INTERPRETER; fi
        if [[ $OPTIMISED == 1 ]] &&
            { [[ $INTERPRETER == "$first" || $HEADERS == 1 ]] || can_apt; }; then
            PYTHON=$INTERPRETER
            break
        fi
    done < <(interpreters)
    if [[ -z $PYTHON ]]; then PYTHON=$first; fi
    if [[ $PYTHON != "$first" ]]; then SKIPPED=$first; fi
    if [[ -n $PYTHON ]]; then return; fi
    LACKING+=("no Python 3.11 or newer" "    -> install one (apt-get install python3,\
 conda install python, or uv python install 3.12)")
    if ! has_compiler && ! can_apt; then
        LACKING+=("no C++ compiler (torch.compile needs one)" "    -> install one:\
 apt-get install g++, or conda install cxx-compiler")
    fi
}

# Sets PYTHON to the active interpreter.
find_active_python() {
    SKIPPED=
    if ! command -v python3 >/dev/null; then
        LACKING+=("no python3 on PATH" "    -> activate the environment that\
 --into-current should use")
    elif probe python3; then
        PYTHON=$(python3 -c 'import sys; print(sys.executable)')
    else
        LACKING+=("the active python3 is older than 3.11" "    -> activate a newer environment,\
 or leave --into-current away")
    fi
}

# --------------------------------------------------------------------------------------------------

FIND=find_python
for word in "$@"; do
    case $word in
        --help | -h) usage && exit ;;
        --into-current) FIND=find_active_python ;;
    esac
done
LACKING=()
$FIND
if ((${#LACKING[@]})); then
    echo "prepare.sh: this machine lacks something:" >&2
    printf '    %s\n' "${LACKING[@]}" >&2
    exit 2
fi
# Executed in this script's place, so that a signal to this script reaches it.
exec "$PYTHON" -P gallery_lib/cli/preparation/__main__.py \
    "$ROOT" "$START_FOLDER" "$PYTHON" "$SKIPPED" "$@"
