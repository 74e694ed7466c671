"""prepare.sh: its options, what it says when something is lacking, and that it can be interrupted anywhere.

The real script runs in a small copy of a checkout. PATH holds the ordinary tools, this interpreter as python3, and a
uv that notes what it was asked and makes a .venv with a python that does the same: nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from gallery_lib.lab import command

TOOLS = ["bash", "awk", "basename", "cat", "chmod", "cp", "date", "df", "dirname", "env", "flock", "grep", "id", "ln", "mkdir", "mv", "rm"]
TOOLS += ["sleep", "touch", "tr", "uname"]

UV = """#!/usr/bin/env bash
echo "uv $*" >> "$NOTES"
case "$1 $2" in
    "--version "*) echo "uv 0.9.0" ;;
    "cache dir") echo "$PWD/uv-cache" ;;
    "venv "*)
        mkdir -p .venv/bin
        printf 'prompt = gallery\\n' > .venv/pyvenv.cfg
        cp "$VENV_PYTHON" .venv/bin/python ;;
    "pip install")
        if [[ -e slow ]]; then touch started; exec sleep "$(cat slow)"; fi
        if [[ -e offline ]]; then exit 1; fi ;;
esac
"""
VENV_PYTHON = """#!/usr/bin/env bash
if [[ -e endless && "$*" == "-m gallery_lib.supervisor "* ]]; then exec "$REAL_PYTHON" "$@"; fi
if [[ -e endless && "$*" == *papermill* ]]; then touch started; sleep 300; fi
echo "python $*" >> "$NOTES"
if [[ "$*" == *papermill* ]]; then echo "runs in $GALLERY_RUNS_DIR" >> "$NOTES"; [[ ! -e failing ]] || exit 3; fi
"""


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Checkout:
    """A copy of what prepare.sh needs, and the environment that it runs in."""

    root: Path
    bin: Path
    env: dict[str, str]

    def start(self, *options: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.root / "prepare.sh"), *options],
            cwd=cwd or self.root,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a signal can go to the script and its children, as Ctrl-C does
        )

    def run(self, *options: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*options, cwd=cwd)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def notes(self) -> str:
        """What uv and .venv's python were asked since the last look."""
        path = Path(self.env["NOTES"])
        text = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return text

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + 30
        while not (self.root / name).exists():
            assert time.monotonic() < deadline, f"{name} did not appear"
            time.sleep(0.02)
        (self.root / name).unlink()


@pytest.fixture
def copy(tmp_path: Path, checkout: Path) -> Checkout:
    root, bin = tmp_path / "check out", tmp_path / "bin"  # a space, since some folders have one
    (root / "notebooks").mkdir(parents=True)
    (root / "data_prep").mkdir()
    (root / "data_prep" / "mock_imagenet.py").touch()
    bin.mkdir()
    for name in ("prepare.sh", "pyproject.toml", "requirements.lock"):
        shutil.copy(checkout / name, root)
    for name in ("resnet50", "vgg16"):
        (root / f"notebooks/{name}.ipynb").write_text("{}")
    for tool in TOOLS:
        (bin / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool} here"))
    write_script(bin / "python3", f'#!/usr/bin/env bash\nexec "{sys.executable}" "$@"\n')
    write_script(bin / "g++", "#!/usr/bin/env bash\n")
    write_script(bin / "uv", UV)
    write_script(tmp_path / "venv-python", VENV_PYTHON)
    env = {
        "PATH": str(bin),
        "HOME": str(tmp_path),
        "NOTES": str(tmp_path / "notes"),
        "VENV_PYTHON": str(tmp_path / "venv-python"),
        "REAL_PYTHON": sys.executable,
        "PYTHONPATH": str(checkout),
        "PREPARE_MIN_DISK_GIB": "0",
    }
    return Checkout(root, bin, env)


def test_it_is_valid_bash(checkout):
    subprocess.run(["bash", "-n", checkout / "prepare.sh"], check=True)
    subprocess.run(["bash", "-n", checkout / ".ci/run"], check=True)


# --------------------------------------------------------------------------------------------------------------
# Options


def test_help_names_every_option(copy):
    result = copy.run("--help")
    assert result.returncode == 0
    for option in ("--run", "-p", "--lab", "--test", "--into-current", "--data", "--lock"):
        assert f"  {option} " in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tset"], "Did you mean --test?"),
        (["--frobnicate"], "--frobnicate: no such option."),
        (["--data", "smal"], "Did you mean small?"),
        (["--data"], "small imagenet-sized"),
        (["--run"], "needs the name"),
        (["--run", "--test"], "needs the name"),
        (["--run", "resnet5"], "Did you mean resnet50?"),
        (["--run", "nothing-like-it"], "There are: resnet50 vgg16"),
        (["--run", "resnet50", "--run", "vgg16"], "twice"),
        (["--run", "resnet50", "-p", "steps"], "a name and a value"),
        (["-p", "steps", "20"], "--run"),
        (["--lab", "--test"], "do not go together"),
    ],
)
def test_a_wrong_option_ends_with_2_and_says_what_to_do_before_anything_is_made(copy, options, words):
    result = copy.run(*options)
    assert result.returncode == 2
    assert words in result.stderr
    assert not (copy.root / ".venv").exists()


# --------------------------------------------------------------------------------------------------------------
# What may be lacking


def test_without_a_python_of_3_11_it_says_so(copy):
    for name in ("python3", "python"):
        write_script(copy.bin / name, "#!/usr/bin/env bash\nexit 1\n")
    write_script(copy.bin / "uv", "#!/usr/bin/env bash\nexit 1\n")
    result = copy.run()
    assert result.returncode == 2
    assert "no Python 3.11 or newer" in result.stderr
    assert "-> install one" in result.stderr


def test_everything_that_is_lacking_is_named_at_once_with_its_remedy(copy):
    (copy.bin / "g++").unlink()
    copy.env["PREPARE_MIN_DISK_GIB"] = "999999"
    result = copy.run()
    assert result.returncode == 2
    assert "no C++ compiler" in result.stderr
    assert "apt-get install g++" in result.stderr
    assert "999999 are needed" in result.stderr
    assert not (copy.root / ".venv").exists()


def test_root_on_debian_gets_the_compiler_and_refreshes_the_package_lists_only_when_it_must(copy):
    (copy.bin / "g++").rename(copy.bin / "hidden")
    (copy.bin / "id").unlink()
    write_script(copy.bin / "id", "#!/usr/bin/env bash\necho 0\n")
    write_script(
        copy.bin / "apt-get",
        """#!/usr/bin/env bash
echo "apt-get $1 ${*: -1}" >> "$NOTES"
if [[ $1 == update ]]; then touch lists; exit; fi
[[ -e lists ]] && mv "${0%/*}/hidden" "${0%/*}/g++"
""",
    )
    result = copy.run()
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert [line for line in notes.splitlines() if "apt-get" in line] == [
        "apt-get install g++",
        "apt-get update -qq",
        "apt-get install g++",
    ]

    (copy.bin / "g++").rename(copy.bin / "hidden")
    assert copy.run().returncode == 0
    assert "update" not in copy.notes()


@pytest.mark.parametrize("root", [True, False])
def test_test_gets_a_browser_as_root_and_else_goes_on_without(copy, root):
    (copy.bin / "id").unlink()
    write_script(copy.bin / "id", f"#!/usr/bin/env bash\necho {0 if root else 1000}\n")
    write_script(
        copy.bin / "apt-get",
        '#!/usr/bin/env bash\necho "apt-get $1 ${*: -1}" >> "$NOTES"\ntouch "${0%/*}/chromium"\nchmod +x "${0%/*}/chromium"\n',
    )
    result = copy.run("--test")
    assert result.returncode == 0, result.stderr
    assert ("apt-get install chromium" in copy.notes()) == root
    assert ("the tests in a real browser will be skipped -> apt-get install chromium" in result.stdout) != root


def test_a_compiler_named_by_cxx_will_do(copy):
    (copy.bin / "g++").rename(copy.bin / "my-compiler")
    copy.env["CXX"] = "my-compiler"
    assert copy.run().returncode == 0


def test_a_failed_install_ends_with_2_and_names_the_network(copy):
    (copy.root / "offline").touch()
    result = copy.run()
    assert result.returncode == 2
    assert "Without network" in result.stderr


def test_a_foreign_venv_is_left_alone(copy):
    (copy.root / ".venv").mkdir()
    (copy.root / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    result = copy.run()
    assert result.returncode == 2
    assert "not made by prepare.sh" in result.stderr
    assert (copy.root / ".venv/pyvenv.cfg").read_text() == "home = /usr/bin\n"


# --------------------------------------------------------------------------------------------------------------
# What is done, when, and in which order


def test_the_first_run_installs_with_hashes_and_the_second_installs_nothing(copy, tmp_path):
    first = copy.run(cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    notes = copy.notes()
    order = ["uv venv", "--require-hashes -r pyproject.toml -c requirements.lock", "--no-deps -e .", "ipykernel install", "--preset small"]
    places = [notes.index(words) for words in order]
    assert places == sorted(places)
    assert "[3/3]" in first.stdout
    assert "Ready" in first.stdout

    second = copy.run()
    assert second.returncode == 0
    assert "already there" in second.stdout
    assert "uv pip" not in copy.notes()


def test_test_adds_the_tools_to_the_same_environment(copy):
    copy.run()
    copy.notes()
    result = copy.run("--test")
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert "uv venv" not in notes
    assert "-r pyproject.toml --all-extras -c" in notes
    assert [line for line in notes.splitlines() if line.startswith("python")][-1] == "python -m pytest -m not gpu"
    copy.run()
    assert "uv pip" not in copy.notes()  # and the tools stay


def test_a_changed_lock_is_installed_on_top(copy):
    copy.run()
    copy.notes()
    with (copy.root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    copy.run()
    notes = copy.notes()
    assert "uv venv" not in notes
    assert "--require-hashes" in notes


def test_a_damaged_or_moved_environment_is_made_anew(copy, tmp_path):
    copy.run()
    (copy.root / ".venv/bin/python").unlink()
    copy.notes()
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()

    copy.root = copy.root.rename(tmp_path / "moved")
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_after_an_interruption_the_next_run_starts_the_environment_anew(copy, sent):
    (copy.root / "slow").write_text("60")
    process = copy.start()
    copy.wait_for("started")
    os.killpg(process.pid, sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[sent]
    assert ("interrupted" in err) == (sent != signal.SIGKILL)
    assert not (copy.root / ".venv/gallery-stamp").exists()

    (copy.root / "slow").unlink()
    copy.notes()
    result = copy.run()
    assert result.returncode == 0, result.stderr
    assert "making it anew" in result.stdout
    assert "uv venv" in copy.notes()


def test_a_failed_update_does_not_count_as_done(copy):
    copy.run()
    with (copy.root / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    (copy.root / "offline").touch()
    assert copy.run().returncode == 2
    (copy.root / "offline").unlink()
    copy.notes()
    assert copy.run().returncode == 0
    assert "uv venv" in copy.notes()


def test_two_at_once_install_once(copy):
    (copy.root / "slow").write_text("1")
    first = copy.start()
    copy.wait_for("started")
    second = copy.run()
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "waiting for it" in second.stdout
    assert "already there" in second.stdout
    assert copy.notes().count("uv venv") == 1


def test_into_current_installs_what_is_missing_there_and_keeps_its_torch(copy):
    write_script(
        copy.bin / "python3",
        f"""#!/usr/bin/env bash
if [[ "$*" == *sys.executable* ]]; then echo "$0"; exit; fi
if [[ "$1" == -m || "$1" == *.py ]]; then echo "python $*" >> "$NOTES"; exit; fi
exec "{sys.executable}" "$@"
""",
    )
    result = copy.run("--into-current")
    assert result.returncode == 0, result.stderr
    notes = copy.notes()
    assert f"uv pip install --python {copy.bin}/python3 -r .cache/into-current-required -c .cache/into-current-kept" in notes
    assert "--sys-prefix" in notes
    assert f"torch=={version('torch')}\n" in (copy.root / ".cache/into-current-kept").read_text()
    assert not (copy.root / ".venv").exists()


# --------------------------------------------------------------------------------------------------------------
# --run


@pytest.mark.parametrize("name", ["resnet50", "resnet50.ipynb", "notebooks/resnet50.ipynb"])
def test_run_executes_the_notebook_in_a_folder_of_its_own_and_shows_what_it_measured(copy, name):
    result = copy.run("--run", name, "-p", "steps", "20", "-p", "profile", "full")
    assert result.returncode == 0, result.stderr
    (folder,) = (copy.root / "runs/notebooks").iterdir()
    assert folder.name.endswith("-resnet50")
    notes = copy.notes()
    assert f"-m papermill {copy.root}/notebooks/resnet50.ipynb {folder}/resnet50.ipynb -k gallery" in notes
    assert "-p steps 20 -p profile full" in notes
    assert f"runs in {folder}\n" in notes
    assert f"-m gallery_lib.cli show {folder}" in notes
    assert str(folder / "resnet50.ipynb") in result.stdout


def test_a_failed_notebook_passes_its_exit_code_on_and_no_table_is_shown(copy):
    (copy.root / "failing").touch()
    result = copy.run("--run", "vgg16")
    assert result.returncode == 3
    assert "the notebook failed" in result.stdout
    assert "show" not in copy.notes()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_the_script_alone_ends_the_notebook_at_once(copy, sent, code):
    (copy.root / "endless").touch()
    process = copy.start("--run", "resnet50")
    copy.wait_for("started")
    process.send_signal(sent)
    _, err = process.communicate(timeout=20)  # until no process that could write there is left
    assert process.returncode == code
    assert "interrupted" in err


# --------------------------------------------------------------------------------------------------------------
# --lab


def test_lab_starts_jupyterlab_for_the_checkout_in_its_own_place(copy):
    assert copy.run("--lab").returncode == 0
    assert copy.notes().splitlines()[-1] == f"python -m gallery_lib.lab {copy.root}"


def test_jupyterlab_is_for_this_machine_alone_and_opens_at_the_index(tmp_path):
    (tmp_path / "notebooks").mkdir()
    shown = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={tmp_path}"]
    assert command(tmp_path)[1:6] == ["-m", "jupyterlab", *shown, "--LabApp.default_url=/lab/tree/notebooks"]
    (tmp_path / "notebooks" / "index.ipynb").touch()
    words = command(tmp_path, ["--no-browser"])
    assert "--LabApp.default_url=/lab/tree/notebooks/index.ipynb" in words
    assert words.count("--no-browser") == 1
    assert not any("token=" in word for word in words)  # JupyterLab makes one, or takes JUPYTER_TOKEN


def test_lab_does_not_start_after_a_notebook_that_failed(copy):
    (copy.root / "failing").touch()
    assert copy.run("--run", "vgg16", "--lab").returncode == 3
    assert "-m gallery_lib.lab" not in copy.notes()
