"""CuPy and what it needs beside it, into the interpreter that runs this.

python -m benchmarks.gpu.prepare     # does nothing where CuPy works, or without a GPU
"""

import subprocess
import sys

from hpcsgd.backends.device_layer import NEWEST, driver_major, load_cupy
from hpcsgd.errors import ConfigError, MissingPackage


def needed(driver: int) -> list[str]:
    """Packages of the CUDA that the driver knows."""
    major = min(driver, NEWEST)
    sanitizer = ["nvidia-cuda-sanitizer-api"] if major >= 13 else []
    return [f"cupy-cuda{major}x[ctk]>=14", f"nvidia-nccl-cu{major}", *sanitizer]


def main() -> int:
    """0 where CuPy works in the end, else 2 after a sentence."""
    try:
        load_cupy()
        return 0
    except MissingPackage as missing:
        driver = driver_major()
        if driver is None:
            print(f"gpu: {missing}", file=sys.stderr)
            return 2
    except ConfigError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "pip", "install", "-q", *needed(driver)]
    print(f"gpu: {' '.join(command[2:])}", file=sys.stderr, flush=True)
    return 2 if subprocess.run(command).returncode else 0


if __name__ == "__main__":
    sys.exit(main())
