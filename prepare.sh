#!/usr/bin/env bash
# Sets up the gallery: an environment in .venv from requirements.lock, a Jupyter kernel, mock data. In a checkout of
# another user all of it goes to folders of one's own.
# With --run it also executes a notebook, with --test it also checks and tests the code.
#
# Works from any folder, and can be interrupted and started again at any point: .venv counts as made only once its
# stamp file is written, last. A second run takes seconds. Exit codes: 2 for something lacking or a wrong option,
# 1 for a failed check, otherwise that of the notebook or of the tests.
set -euo pipefail

START_FOLDER=$PWD
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$ROOT"

# Where environment, cache and runs are: in the checkout, where this user keeps things there (gallery_lib/system/paths.py has the same rule).
VENV=.venv
CACHE=.cache
RUNS=$ROOT/runs
OURS=1
if [[ ! -w $ROOT ]] || { [[ $(id -u) != 0 ]] && [[ ! -O $ROOT ]]; }; then
    OURS=0
    CACHE=${GALLERY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/gallery_lib}
    VENV=$CACHE/environments/${ROOT//\//-}
    RUNS=$HOME/gallery-runs
fi

# command:package, for Debian and its kin; "python-headers" stands for Python.h.
NEEDED=(g++:g++ python-headers:)  # Inductor, torch's compiler, writes C++ and compiles it
MIN_DISK_GIB=${PREPARE_MIN_DISK_GIB:-8}  # the environment is 5.7 GiB with CUDA's libraries, shared with uv's cache by hard links
DATA_PRESETS=(small imagenet-sized)
OPTIONS=(--run -p --lab --test --into-current --data --lock --help)

usage() {
    cat <<'TEXT'
Usage: bash prepare.sh [options]

Makes .venv from requirements.lock, registers the Jupyter kernel "Gallery" in it, and makes the mock data.

  --run NOTEBOOK     also execute notebooks/NOTEBOOK.ipynb, into runs/notebooks/, and print its table
  -p NAME VALUE      with --run: a parameter of the notebook, checked before anything is made; may be repeated
  --lab              then start JupyterLab, on this machine alone and with a token, with copies of the notebooks in my_notebooks/
  --test             also install the tools for development (as root, Debian's chromium and iproute2 too), and run checks and tests
  --into-current     use the active environment instead of .venv: install what is missing there, leave its torch alone
  --data PRESET      mock data to make: small (default) or imagenet-sized
  --lock             only write requirements.lock anew from pyproject.toml (pins are kept where they still fit)
  --help             show this text

Afterwards:  bash prepare.sh --lab  (JUPYTER_PORT and JUPYTER_TOKEN choose port and token)
TEXT
}

# ---------------------------------------------------------------------------------------------------------------------
# Messages

say() { printf '%s\n' "$*"; }

# stop MESSAGE...: one line each, and exit code 2.
stop() {
    printf 'prepare.sh: %s\n' "$1" >&2
    shift
    if (($#)); then printf '    %s\n' "$@" >&2; fi
    exit 2
}

# closest WORD KNOWN...: " Did you mean X?" when one of KNOWN is close (needs a python3; without one, nothing).
closest() {
    python3 -c 'import difflib, sys
close = difflib.get_close_matches(sys.argv[1], sys.argv[2:], n=1, cutoff=0.5)
print(f" Did you mean {close[0]}?" if close else "", end="")' "$@" 2>/dev/null || true
}

STEP=0
STEP_STARTED=0
finish_step() { if ((STEP)); then say "      done in $((SECONDS - STEP_STARTED)) s"; fi; }
step() {
    finish_step
    STEP=$((STEP + 1))
    STEP_STARTED=$SECONDS
    say "[$STEP/$STEPS] $*"
}

# ---------------------------------------------------------------------------------------------------------------------
# Signals

CHILD=

# attend COMMAND...: runs it so that a signal to this script alone is heeded at once. bash runs a trap only when the
# command in front of it has ended, which may take hours, but does not put it off while it waits for one behind it.
attend() {
    local code=0
    "$@" &
    CHILD=$!
    wait "$CHILD" || code=$?
    CHILD=
    return "$code"
}

# supervised COMMAND...: the same, and no process of it is left however it ends.
supervised() { attend "$PY" -m gallery_lib.system.supervisor "$@"; }

# interrupted CODE: ends what is attended, with SIGTERM also after Ctrl-C, which commands behind a script ignore.
interrupted() {
    trap '' INT TERM
    if [[ -n $CHILD ]]; then
        kill -TERM "$CHILD" 2>/dev/null || true
        wait "$CHILD" || true
    fi
    echo "prepare.sh: interrupted. The same command goes on from here." >&2
    exit "$1"
}
trap 'interrupted 130' INT
trap 'interrupted 143' TERM

# ---------------------------------------------------------------------------------------------------------------------
# Options

RUN=
PARAMETERS=()
TEST=0
LAB=0
INTO_CURRENT=0
DATA=small
LOCK_ONLY=0

read_options() {
    while (($#)); do
        case $1 in
            --run=* | --data=*)
                set -- "${1%%=*}" "${1#*=}" "${@:2}"
                continue
                ;;
            --run)
                if [[ $# -lt 2 || -z $2 || $2 == -* ]]; then stop "--run needs the name of a notebook."; fi
                if [[ -n $RUN ]]; then stop "--run was given twice; it runs one notebook."; fi
                RUN=$2
                shift 2
                ;;
            -p)
                if (($# < 3)); then stop "-p needs a name and a value: -p batch_size 32"; fi
                PARAMETERS+=(-p "$2" "$3")
                shift 3
                ;;
            --data)
                if (($# < 2)); then stop "--data needs one of: ${DATA_PRESETS[*]}"; fi
                case $2 in
                    small | imagenet-sized) DATA=$2 ;;
                    *) stop "--data $2: no such preset.$(closest "$2" "${DATA_PRESETS[@]}")" "There are: ${DATA_PRESETS[*]}" ;;
                esac
                shift 2
                ;;
            --test) TEST=1 && shift ;;
            --lab) LAB=1 && shift ;;
            --into-current) INTO_CURRENT=1 && shift ;;
            --lock) LOCK_ONLY=1 && shift ;;
            --help | -h) usage && exit 0 ;;
            *) stop "$1: no such option.$(closest "$1" "${OPTIONS[@]}")" "Options: ${OPTIONS[*]}" ;;
        esac
    done
    if ((LAB && TEST)); then stop "--lab and --test do not go together: the one stays, the other ends."; fi
    if ((${#PARAMETERS[@]})) && [[ -z $RUN ]]; then stop "-p gives a parameter to the notebook of --run, which is missing."; fi
}

# Sets NOTEBOOK, a path, from a name, a file name or a path.
find_notebook() {
    local name=$1 path known=()
    for path in "$START_FOLDER/$name" "$name"; do
        if [[ $path == *.ipynb && -f $path ]]; then
            NOTEBOOK=$(cd "$(dirname "$path")" && pwd)/$(basename "$path")
            return
        fi
    done
    NOTEBOOK=$ROOT/notebooks/$(basename "$name" .ipynb).ipynb
    if [[ $name != */* && -f $NOTEBOOK ]]; then return; fi
    for path in notebooks/*.ipynb; do
        if [[ -f $path ]]; then known+=("$(basename "$path" .ipynb)"); fi
    done
    if ((${#known[@]} == 0)); then stop "--run $name: there are no notebooks in notebooks/."; fi
    stop "--run $name: no such notebook.$(closest "$(basename "$name" .ipynb)" "${known[@]}")" "There are: ${known[*]}"
}

# check_parameters: refuses what the notebook of --run does not take, as `gallery run` does. Takes no package but the gallery's.
check_parameters() {
    if ((${#PARAMETERS[@]} == 0)); then return; fi
    "$PYTHON" -m gallery_lib.notebooks.batch.parameters "$NOTEBOOK" "${PARAMETERS[@]}" || exit 2
}

# ---------------------------------------------------------------------------------------------------------------------
# This machine

LACKING=()
lacks() { LACKING+=("$1" "    -> $2"); }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# Whether it was compiled with the optimisations that distributions compile it with. pyenv, for one, leaves them away unless told:
# the imports, torch's tracing, and whatever else of a start is Python, then take a fifth longer.
optimised() {
    "$1" -c 'import sys, sysconfig
sys.exit(sys.base_prefix != "/usr" and "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))'
}

# The interpreters on PATH, best guess first.
pythons() {
    type -aP python3 python3.13 python3.12 python3.11 python || true
    uv python find --no-python-downloads '>=3.11' 2>/dev/null || true
}

# use_venv FOLDER: sets VENV, and PY, its interpreter.
use_venv() {
    VENV=$1
    PY=$VENV/bin/python
    if [[ $PY != /* ]]; then PY=$ROOT/$PY; fi
}

# Sets PYTHON, the interpreter that .venv is made from, and PY, .venv's own. With --into-current both are the active one.
find_python() {
    local candidate
    PYTHON=
    FIRST_PYTHON=
    use_venv "$VENV"
    if ((INTO_CURRENT)); then
        if ! command -v python3 >/dev/null; then
            lacks "no python3 on PATH" "activate the environment that --into-current should use"
        elif ! new_enough python3; then
            lacks "the active python3 is older than 3.11" "activate a newer environment, or leave --into-current away"
        else
            PYTHON=$(python3 -c 'import sys; print(sys.executable)')
            PY=$PYTHON
        fi
        return
    fi
    while IFS= read -r candidate; do
        if ! new_enough "$candidate"; then continue; fi
        candidate=$("$candidate" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
        FIRST_PYTHON=${FIRST_PYTHON:-$candidate}
        if optimised "$candidate" && { [[ $candidate == "$FIRST_PYTHON" ]] || can_compile "$candidate"; }; then
            PYTHON=$candidate
            return
        fi
    done < <(pythons)
    PYTHON=$FIRST_PYTHON
    if [[ -z $PYTHON ]]; then
        lacks "no Python 3.11 or newer" "install one (apt-get install python3, conda install python, or uv python install 3.12)"
    fi
}

has_headers() {
    "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

can_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }

# Whether torch.compile will find this interpreter's headers, or can be given them.
can_compile() { has_headers "$1" || can_apt; }

# has COMMAND: whether the machine has it. A C++ compiler may have another name; Inductor heeds CXX.
has() {
    case $1 in
        g++) command -v "${CXX:-g++}" >/dev/null || { [[ $(uname) == Darwin ]] && command -v clang++ >/dev/null; } ;;
        python-headers)
            [[ -z $PYTHON ]] || has_headers "$PYTHON"
            ;;
        *) command -v "$1" >/dev/null ;;
    esac
}

apt_install() {
    say "      apt-get install $*"
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need COMMAND:PACKAGE...: installs what is missing where that is possible, else notes it as lacking.
need() {
    local pair packages=() missing=()
    for pair in "$@"; do
        if has "${pair%%:*}"; then continue; fi
        missing+=("$pair")
        if [[ $pair == python-headers:* ]]; then
            packages+=("$("$PYTHON" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}-dev")')")
        else
            packages+=("${pair#*:}")
        fi
    done
    if ((${#missing[@]} == 0)); then return; fi
    if can_apt; then apt_install "${packages[@]}" || true; fi
    for pair in "${missing[@]}"; do
        if has "${pair%%:*}"; then continue; fi
        case $pair in
            g++:*) lacks "no C++ compiler (torch.compile needs one)" "install one: apt-get install g++, or conda install cxx-compiler" ;;
            python-headers:*) lacks "no Python.h for $PYTHON (torch.compile needs it)" "install its headers: apt-get install ${packages[-1]}" ;;
        esac
    done
}

# The tests in a real browser are skipped without one: it is got where that is possible, and not needed.
get_browser() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if has "$name"; then return; fi
    done
    if can_apt; then apt_install chromium || true; fi
    if ! has chromium; then say "      no chromium: the tests in a real browser will be skipped -> apt-get install chromium"; fi
}

# The tests of several hosts on one machine, likewise.
get_network_tools() {
    if has ip && has tc; then return; fi
    if can_apt; then apt_install iproute2 || true; fi
    if ! has ip; then say "      no ip and tc: the tests of several hosts will be skipped -> apt-get install iproute2"; fi
}

need_disk() {
    local free_gib folder=$ROOT remedy="put the checkout on a larger disk"
    if ((!OURS)); then
        folder=$CACHE
        remedy="name a folder on a larger disk with GALLERY_CACHE_DIR"
        mkdir -p "$CACHE"
    fi
    free_gib=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1048576) }')
    if ((free_gib < MIN_DISK_GIB)); then
        lacks "only $free_gib GiB free below $folder, $MIN_DISK_GIB are needed" "free some space, or $remedy"
    fi
}

check_machine() {
    find_python
    if [[ -n $PYTHON ]]; then check_parameters; fi
    need "${NEEDED[@]}"
    if ((TEST)); then
        get_browser
        get_network_tools
    fi
    READY=0
    if [[ -n $PYTHON ]]; then
        if environment_is_ready; then READY=1; else need_disk; fi
    fi
    if ((${#LACKING[@]})); then stop "this machine lacks something:" "${LACKING[@]}"; fi
    say "      $("$PYTHON" -c 'import platform; print("Python", platform.python_version())') at $PYTHON"
    if [[ $PYTHON != "${FIRST_PYTHON:-$PYTHON}" ]]; then
        say "      ($FIRST_PYTHON was compiled without its optimisations: starts would take longer)"
    fi
}

# ---------------------------------------------------------------------------------------------------------------------
# The environment

# Keeps two runs in the same checkout apart until release_lock.
take_lock() {
    mkdir -p "$CACHE"
    if ! command -v flock >/dev/null; then return; fi
    exec 9>"$CACHE/prepare.lock"
    if ! flock -n 9; then
        say "Another prepare.sh is at work here: waiting for it."
        flock 9
    fi
}
release_lock() { exec 9>&-; }

# Sets UV, from PATH or else from an environment of its own, made with pip (and so with pip's configuration).
find_uv() {
    if uv --version >/dev/null 2>&1; then
        UV=uv
    elif "$CACHE/uv-tool/bin/uv" --version >/dev/null 2>&1; then
        UV=$CACHE/uv-tool/bin/uv
    else
        say "      getting uv, which installs the packages"
        rm -rf "$CACHE/uv-tool"
        if ! { "$PYTHON" -m venv "$CACHE/uv-tool" && "$CACHE/uv-tool/bin/pip" install --quiet uv; }; then
            stop "uv could not be installed; the reason is above." \
                "Without network or behind a proxy: set HTTPS_PROXY, or pip's index-url." \
                "Or install uv yourself, and run this again."
        fi
        UV=$CACHE/uv-tool/bin/uv
    fi
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180}
}

# uv links packages from its cache; where the cache is on another file system it has to copy, and would warn.
choose_link_mode() {
    local cache probe=$CACHE/link-probe
    if [[ -n ${UV_LINK_MODE:-} ]]; then return; fi
    cache=$("$UV" cache dir)
    mkdir -p "$cache"
    : >"$probe"
    if ! ln "$probe" "$cache/gallery-link-probe.$$" 2>/dev/null; then export UV_LINK_MODE=copy; fi
    rm -f "$probe" "$cache/gallery-link-probe.$$"
}

# Three facts that the stamp records: what the environment was made from, what it should hold, and with which extra.
# Sets STAMP and these; a change of the first means making .venv anew, of the others installing on top.
environment_facts() {
    local facts
    facts=$("$PYTHON" - "$ROOT" <<'PY'
import hashlib, pathlib, sys
def digest(*parts):
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
print(digest(sys.argv[1].encode(), sys.prefix.encode()))
print(digest(sys.argv[1].encode(), sys.version.encode()))
print(digest(*(pathlib.Path(name).read_bytes() for name in ("pyproject.toml", "requirements.lock"))))
PY
    )
    { read -r PREFIX_ID && read -r MADE_FROM && read -r CONTENT; } <<<"$facts"
    if ((INTO_CURRENT)); then STAMP=$CACHE/into-current-$PREFIX_ID; else STAMP=$VENV/gallery-stamp; fi
}

read_stamp() {
    STAMP_MADE_FROM='' STAMP_CONTENT='' STAMP_EXTRA=''
    if [[ -f $STAMP ]]; then read -r STAMP_MADE_FROM STAMP_CONTENT STAMP_EXTRA <"$STAMP" || true; fi
}

write_stamp() {
    printf '%s %s %s\n' "$MADE_FROM" "$CONTENT" "$EXTRA" >"$STAMP.new"
    mv "$STAMP.new" "$STAMP"
}

# Whether the interpreter starts and sees this checkout, the declared packages and the kernel: a fraction of a second.
environment_works() {
    "$PY" -P - "$ROOT" 2>/dev/null <<'PY'
import importlib.metadata, importlib.util, pathlib, re, sys
root = pathlib.Path(sys.argv[1])
spec = importlib.util.find_spec("gallery_lib")
assert spec and spec.origin and root in pathlib.Path(spec.origin).parents
for requirement in importlib.metadata.requires("gallery_lib"):
    if "extra ==" not in requirement:
        importlib.metadata.version(re.match(r"[\w.-]+", requirement)[0])
assert '"PATH"' in pathlib.Path(sys.prefix, "share/jupyter/kernels/gallery/kernel.json").read_text()
PY
}

environment_is_ready() {
    local own=$VENV
    if ((!OURS && !INTO_CURRENT)) && [[ ! -e $own ]]; then # the owner's, where it is of this checkout as it stands
        use_venv .venv
        if environment_is_current; then return; fi
        use_venv "$own"
    fi
    environment_is_current
}

environment_is_current() {
    environment_facts
    read_stamp
    if [[ $STAMP_MADE_FROM != "$MADE_FROM" || $STAMP_CONTENT != "$CONTENT" ]]; then return 1; fi
    if [[ $EXTRA == dev && $STAMP_EXTRA != dev ]]; then return 1; fi
    environment_works
}

install_failed() {
    stop "the packages could not be installed; the reason is above." \
        "Without network or behind a proxy: set HTTPS_PROXY, or UV_DEFAULT_INDEX for a package index of your own." \
        "For \"invalid peer certificate\": UV_SYSTEM_CERTS=1 trusts what this machine trusts, SSL_CERT_FILE=FILE the certificates in FILE." \
        "Run the same command again afterwards: what was downloaded is kept." "$@"
}

make_venv() {
    local extra=() anew=0
    if [[ $STAMP_EXTRA == dev ]]; then EXTRA=dev; fi
    if [[ $EXTRA == dev ]]; then extra=(--all-extras); fi # the tests cover what is optional too
    if [[ -f $VENV/pyvenv.cfg ]] && ! grep -q '^prompt = gallery$' "$VENV/pyvenv.cfg"; then
        stop "$VENV is there, but was not made by prepare.sh." "Move it away, or activate it and use --into-current."
    fi
    find_uv
    choose_link_mode
    # Incomplete, of another Python, moved here from elsewhere, or damaged: made anew. Else brought up to date.
    if [[ $STAMP_MADE_FROM != "$MADE_FROM" ]] || ! "$PY" -c '' 2>/dev/null; then
        anew=1
    elif [[ $STAMP_CONTENT == "$CONTENT" && $STAMP_EXTRA == "$EXTRA" ]]; then
        anew=1
    fi
    rm -f "$STAMP"
    if ((anew)); then
        if [[ -e $VENV ]]; then say "      $VENV is incomplete or of another set-up: making it anew"; fi
        rm -rf "$VENV"
        "$UV" venv --quiet --python "$PYTHON" --prompt gallery "$VENV" || install_failed
    fi
    # The lock serves as constraints: each package must be in it, at its version and with its hash.
    # Compiled to bytecode here, once: else every process of a machine that keeps none (PYTHONDONTWRITEBYTECODE, or a .venv
    # that its users may not write to) does it anew, which makes the import of torch and its compiler three times as long.
    attend "$UV" pip install --python "$PY" --compile-bytecode --require-hashes -r pyproject.toml ${extra[@]+"${extra[@]}"} -c requirements.lock || install_failed
    "$UV" pip install --quiet --python "$PY" --no-deps -e . || install_failed
}

# Installs what the active environment lacks. Its torch and torchvision stay at the version they have.
add_to_current() {
    local install kept
    rm -f "$STAMP"
    if uv --version >/dev/null 2>&1; then
        install=(uv pip install --python "$PY")
    elif "$PY" -m pip --version >/dev/null 2>&1; then
        install=("$PY" -m pip install)
    else
        stop "there is neither uv nor pip to install with." "Install uv, or run: $PY -m ensurepip"
    fi
    "$PY" - "$EXTRA" "$CACHE/into-current-required" "$CACHE/into-current-kept" <<'PY'
import importlib.metadata, pathlib, sys, tomllib
extra, required, kept = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
optional = project["optional-dependencies"].values() if extra == "dev" else []
needed = project["dependencies"] + [requirement for group in optional for requirement in group]
required.write_text("\n".join(needed) + "\n")
pins = []
for name in ("torch", "torchvision"):
    try:
        pins.append(f"{name}=={importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        pass
kept.write_text("\n".join([*pins, ""]))
PY
    kept=$(tr '\n' ' ' <"$CACHE/into-current-kept")
    if [[ -n $kept ]]; then say "      kept as they are: $kept"; fi
    attend "${install[@]}" -r "$CACHE/into-current-required" -c "$CACHE/into-current-kept" ||
        install_failed ${kept:+"What had to stay as it is: $kept- the gallery needs what pyproject.toml says."}
    "${install[@]}" --quiet --no-deps -e . || install_failed
}

prepare_environment() {
    if ((READY)); then
        say "      already there"
        return
    fi
    if ((INTO_CURRENT)); then add_to_current; else make_venv; fi
    say "      registering the Jupyter kernel \"Gallery\""
    # The kernel's PATH begins with its environment, so that `!python` in a cell is the notebook's own Python.
    "$PY" -m ipykernel install --sys-prefix --name gallery --display-name "Gallery" --env PATH "$(dirname "$PY"):\${PATH}" >/dev/null ||
        stop "the Jupyter kernel could not be registered; the reason is above."
    write_stamp
}

write_lock() {
    find_python
    if ((${#LACKING[@]})); then stop "this machine lacks something:" "${LACKING[@]}"; fi
    mkdir -p .cache
    find_uv
    if [[ -f requirements.lock ]]; then cp requirements.lock .cache/new.lock; else rm -f .cache/new.lock; fi
    "$UV" pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras --no-header \
        --no-emit-index-url --output-file .cache/new.lock pyproject.toml >/dev/null
    {
        say "# Every package of the environment, with its version and hashes. Written by: bash prepare.sh --lock"
        cat .cache/new.lock
    } >.cache/headed.lock
    mv .cache/headed.lock requirements.lock
    rm .cache/new.lock
    say "requirements.lock: $(grep -c '^[a-zA-Z0-9]' requirements.lock) packages"
}

# ---------------------------------------------------------------------------------------------------------------------
# --run and --test

run_notebook() {
    local name folder code=0
    name=$(basename "$NOTEBOOK" .ipynb)
    folder=${GALLERY_RUNS_DIR:-$RUNS}/notebooks/$(date +%Y%m%d-%H%M%S)-$name
    while [[ -e $folder ]]; do folder=$folder-again; done
    mkdir -p "$folder"
    GALLERY_RUNS_DIR=$folder supervised "$PY" -m gallery_lib.notebooks.batch.live_notebook "$NOTEBOOK" "$folder/$name.ipynb" -k gallery --cwd "$ROOT/notebooks" \
        --log-output ${PARAMETERS[@]+"${PARAMETERS[@]}"} || code=$?
    if ((code == 0)); then
        say ""
        "$PY" -m gallery_lib.cli.main show "$folder" || code=$?
        say ""
    else
        say "      the notebook failed: its last cell with output says why"
    fi
    say "      executed notebook: $folder/$name.ipynb"
    say "      results:           $folder"
    RUN_CODE=$code
}

FAILED=()
check() {
    local name=$1
    shift
    say "      $name"
    attend "$@" || FAILED+=("$name")
}

check_code() {
    local notebooks=(notebooks/*.ipynb) written=(--extend-exclude runs --extend-exclude .cache)
    check "ruff check" "$PY" -m ruff check --quiet "${written[@]}" .
    check "ruff format" "$PY" -m ruff format --quiet --check "${written[@]}" .
    check "mypy" "$PY" -m mypy --no-error-summary
    check "import direction" "$PY" tests/project/import_direction.py gallery_lib
    if [[ -f ${notebooks[0]} ]]; then
        check "no outputs in notebooks" "$PY" -m nbstripout --verify --keep-id "${notebooks[@]}"
    fi
    if ((${#FAILED[@]})); then
        printf 'prepare.sh: failed: %s\n' "${FAILED[@]}" >&2
        say "The tests were not started."
        exit 1
    fi
}

# ---------------------------------------------------------------------------------------------------------------------

read_options "$@"
if ((LOCK_ONLY)); then
    write_lock
    exit
fi
if [[ -n $RUN ]]; then find_notebook "$RUN"; fi
EXTRA=plain
if ((TEST)); then EXTRA=dev; fi
STEPS=3
if [[ -n $RUN ]]; then STEPS=$((STEPS + 1)); fi
if ((TEST)); then STEPS=$((STEPS + 2)); fi

take_lock
if ((!OURS)); then say "$ROOT is not yours to write in: environment and data go to $CACHE, runs to $RUNS."; fi
step "Checking this machine"
check_machine

if ((INTO_CURRENT)); then step "The active environment"; else step "The environment, $VENV"; fi
prepare_environment

step "Mock data, $DATA"
# A packed task (gallery pack) has the commands of its own data alone.
if [[ -f data_prep/mock_imagenet.py ]]; then supervised "$PY" data_prep/mock_imagenet.py --preset "$DATA"; fi
for set in mock_segmentation text mock_speech mock_speakers; do
    if [[ -f data_prep/$set.py ]]; then supervised "$PY" "data_prep/$set.py"; fi
done
release_lock

RUN_CODE=0
if [[ -n $RUN ]]; then
    step "Running $(basename "$NOTEBOOK")"
    run_notebook
fi

if ((TEST)); then
    if ((RUN_CODE)); then exit "$RUN_CODE"; fi
    step "Checking the code"
    check_code
    step "Testing, everything that needs no GPU"
    exec "$PY" -m pytest -m "not gpu" --durations=60 --durations-min=15
fi

finish_step
if ((LAB && RUN_CODE == 0)); then
    exec "$PY" -m gallery_lib.notebooks.jupyterlab "$ROOT"
fi
if ((RUN_CODE == 0)); then
    "$PY" -m gallery_lib.cli.next_steps "$START_FOLDER" $( ((INTO_CURRENT)) && echo --into-current)
fi
exit "$RUN_CODE"
