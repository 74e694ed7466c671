"""Run tests on an ARM processor that QEMU emulates, with torch's own packages for ARM.

    python -m tests.processors.aarch64                  # same bits as here, then the C++'s tests
    python -m tests.processors.aarch64 tests/optim -x   # pytest, with these options

The first call fetches Debian's Python and the packages, 6 GB, into `.cache/aarch64`. It needs
Debian's qemu-user-static, and g++-aarch64-linux-gnu, which builds the C++. Further Python processes
start only where the kernel was told about QEMU (Debian's binfmt-support).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.json_script import printed_by

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "aarch64"
SYSTEM, PACKAGES = FOLDER / "system", FOLDER / "packages"
PROCESSOR = "neoverse-n1"
PYTHON = "usr/bin/python3"
TOOLS = "pytest", "pytest-timeout", "hypothesis"
PROGRAMS = {
    "qemu-aarch64-static": "qemu-user-static",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
RESULTS = "tests/processors/results_of_cpp.py"
PYTEST = (
    *("-m", "pytest", "-m", "not slow and not gpu", "-k", "not host"),
    *("-p", "no:cacheprovider"),
    *("-o", "addopts=--strict-markers --import-mode=importlib"),
)
TESTS = (
    "tests/kernels/test_batch_norm.py",
    "tests/kernels/test_compression.py",
    "tests/kernels/test_cpu_optimizers.py",
    "tests/kernels/test_cross_entropy.py",
    "tests/kernels/test_dropout_mask.py",
    "tests/kernels/test_max_pool.py",
    "tests/optim/test_forms.py",
)
COMPILER = f"""#!/bin/sh
# The cross compiler for the emulated processor, which is not what it takes for `native`.
for word do
    shift
    case $word in -mcpu=native | -march=native) word=-mcpu={PROCESSOR} ;; esac
    set -- "$@" "$word"
done
exec aarch64-linux-gnu-g++ "$@" -idirafter {SYSTEM}/usr/include
"""
FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)
PROCESSOR_FACTS = """processor\t: {core}
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
MAIN_ID = "0x00000000413fd0c1\n"


def run(*command: str | Path) -> None:
    """Run a command of the preparation; end with its name where it fails."""
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{command[0]} failed, its reason is above or this: {error}") from None


def fetch_system() -> None:
    """Unpack Debian's Python for arm64 into SYSTEM; the machine's own packages stay as they are."""
    state, cache = FOLDER / "apt", FOLDER / "archives"
    for folder in (state / "lists" / "partial", cache / "archives" / "partial", SYSTEM):
        folder.mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": cache,
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    run(*apt, "update")
    download = ["install", "--download-only", "--no-install-recommends", "-y"]
    run(*apt, *download, "python3", "libpython3-dev", "libstdc++6")
    for package in sorted((cache / "archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, SYSTEM)


def describe_processor() -> None:
    """Write what torch reads of a processor's kind, which the emulator takes from this machine."""
    facts = SYSTEM / "proc" / "cpuinfo"
    facts.parent.mkdir(exist_ok=True)
    cores = range(os.cpu_count() or 1)
    facts.write_text(
        "".join(PROCESSOR_FACTS.format(core=core, features=FEATURES) for core in cores)
    )
    for core in cores:
        folder = SYSTEM / f"sys/devices/system/cpu/cpu{core}/regs/identification"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "midr_el1").write_text(MAIN_ID)


def fetch_packages() -> None:
    """Install torch and what the tests need, built for aarch64, into PACKAGES."""
    version = (SYSTEM / PYTHON).resolve().name.removeprefix("python")
    platform = ["--python-platform", "aarch64-manylinux_2_28", "--python-version", version]
    uv = shutil.which("uv") or str(ROOT / ".cache" / "uv-tool" / "bin" / "uv")
    pins = ["--constraints", ROOT / "requirements.lock", "--only-binary", ":all:"]
    wanted = ["-r", ROOT / "pyproject.toml", *TOOLS]
    run(uv, "pip", "install", "--target", PACKAGES, *platform, *pins, *wanted)


def prepare() -> None:
    """Make FOLDER, unless it is whole."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            print(f"{program} is missing. Debian: apt-get install {package}", file=sys.stderr)
            raise SystemExit(2)
    whole = FOLDER / "whole"
    if whole.exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    fetch_system()
    describe_processor()
    fetch_packages()
    compiler = FOLDER / "g++"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    whole.touch()


def emulated(*words: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """Run Python with these words on the emulated processor; it ends when this process does."""
    search = os.pathsep.join(map(str, (PACKAGES, ROOT, ROOT / "tests" / "helpers", ROOT / "tests")))
    environment = os.environ | {
        "QEMU_CPU": PROCESSOR,
        "QEMU_LD_PREFIX": str(SYSTEM),  # for further processes
        "CXX": str(FOLDER / "g++"),
        "GALLERY_CACHE_DIR": str(FOLDER / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(FOLDER / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "2",
    }
    supervised = [sys.executable, "-m", "gallery_lib.system.supervisor", str(os.getpid())]
    command = [*supervised, "env", f"PYTHONPATH={search}", "qemu-aarch64-static"]
    command += ["-L", str(SYSTEM), str(SYSTEM / PYTHON), *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE if capture else None
    )


def different_bits() -> list[str]:
    """Return the results of our C++ that have other bits there than on this machine."""
    expected = printed_by(ROOT / RESULTS, timeout=300)
    there = emulated(RESULTS, capture=True)
    if there.returncode:
        raise SystemExit(f"{RESULTS} ended with code {there.returncode} there")
    found = json.loads(there.stdout)
    print(f"{len(expected)} results of the C++ compared", flush=True)
    return sorted(name for name in expected if expected[name] != found[name])


def main() -> None:
    """Prepare, compare, and run the tests; end with pytest's exit code, or 1 for other bits."""
    prepare()
    if options := sys.argv[1:]:
        raise SystemExit(emulated(*PYTEST, *options).returncode)
    if different := different_bits():
        raise SystemExit(f"other bits than here: {', '.join(different)}")
    raise SystemExit(emulated(*PYTEST, *TESTS).returncode)


if __name__ == "__main__":
    main()
