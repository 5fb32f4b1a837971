"""What `make gpu` needs before it begins: CuPy, the GPU itself, all kernels compiled.

python -m benchmarks.gpu.prepare     # 2 and a sentence where there is no GPU

CuPy keeps on disk what it has compiled, so that whoever follows finds it there. The
kernels of the host are built meanwhile, where this interpreter has none.
"""

import os
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.driver import NEWEST, driver_major, load_cupy
from hpcsgd.backends.cuda.kernels import Build, all_builds
from hpcsgd.errors import ConfigError, MissingPackage

ROOT = Path(__file__).parents[2]
INSTALLED = "--installed"  # by the caller: it is not done a second time
LONGEST = 120.0  # seconds for the kernels of the host, which are no must


def needed(driver: int) -> list[str]:
    """Packages of the CUDA that the driver knows."""
    major = min(driver, NEWEST)
    sanitizer = ["nvidia-cuda-sanitizer-api"] if major >= 13 else []
    return [f"cupy-cuda{major}x[ctk]>=14", f"nvidia-nccl-cu{major}", *sanitizer]


def main(given: list[str]) -> int:
    """0 where a GPU can be used, else 2 after a sentence."""
    try:
        load_cupy()
        device = CudaDevice()
    except MissingPackage as missing:
        driver = driver_major()
        if driver is None or INSTALLED in given:
            return _no_gpu(missing)
        return _install(driver)
    except ConfigError as error:
        return _no_gpu(error)
    host = build_host_kernels()
    compile_all(device)
    _wait(host)
    return 0


def _no_gpu(error: Exception) -> int:
    print(f"gpu: {error}", file=sys.stderr)
    return 2


def _install(driver: int) -> int:
    """What is missing; an interpreter that has looked for it looks no more."""
    command = [sys.executable, "-m", "pip", "install", "-q", *needed(driver)]
    print(f"gpu: {' '.join(command[2:])}", file=sys.stderr, flush=True)
    if subprocess.run(command).returncode:
        return 2
    own = [sys.executable, "-m", "benchmarks.gpu.prepare", INSTALLED]
    return subprocess.run(own, cwd=ROOT).returncode


def compile_all(device: CudaDevice) -> None:
    """Every kernel of the table, as many at once as there are processors."""
    builds, began = all_builds(device.arch), time.monotonic()

    def one(build: Build) -> int:
        device.device.use()  # of this thread
        try:
            device.layer.kernels.get(build)
        except ConfigError as error:  # the others are for something all the same
            _no_gpu(error)
            return 0
        return 1

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ready = sum(pool.map(one, builds))
    said = f"{ready} of {len(builds)} kernels in {time.monotonic() - began:.1f} s"
    print(f"gpu: {device.layer.place}, sm_{device.arch}: {said}", file=sys.stderr)


def build_host_kernels() -> "subprocess.Popen[bytes] | None":
    """Their build under way, or None where they are there."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if any((ROOT / "hpcsgd" / "backends").glob(f"_cpu_*{suffix}")):
        return None
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, **quiet)


def _wait(host: "subprocess.Popen[bytes] | None") -> None:
    try:
        if host is None or host.wait(LONGEST) == 0:
            return
    except subprocess.TimeoutExpired:
        host.kill()
    said = "the kernels of the host were not built; NumPy does their work"
    print(f"gpu: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
