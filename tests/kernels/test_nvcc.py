"""The same texts by nvcc, where it is installed: NVRTC does not read them alone."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcsgd.backends.cuda.kernels import ARCHS, compiled_for, options
from tests.helpers.kernels.compiles import faults_in, worthy
from tests.helpers.kernels.emulator import KERNELS
from tests.helpers.kernels.nvrtc import OF_CUPY, major_for

NVCC = shutil.which("nvcc")
ONLY_NVRTC = ("--device-as-default-execution-space",)
pytestmark = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


def fault_of(build, arch, folder, text=None):
    """What nvcc says of it that it should not, in words; nothing if all is well."""
    given = (*options(build, str(KERNELS)), *OF_CUPY)
    flags = [flag for flag in given if flag not in ONLY_NVRTC]
    number = abs(hash((build, arch)))
    target = ["-cubin", f"-arch=sm_{compiled_for(build, arch)}"]
    target += ["-Xptxas", "-v", "-Werror", "all-warnings"]
    source = folder / f"{number}.cu"
    source.write_text(
        (KERNELS / f"{build.source}.cu").read_text() if text is None else text
    )
    command = [
        NVCC,
        *flags,
        *target,
        "-o",
        str(folder / f"{number}.cubin"),
        str(source),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode:
        return f"sm_{arch} {build}: {said[:3000]}"
    faults = faults_in(said)
    return f"sm_{arch} {build}: {faults}" if faults else ""


def has_no_fault(builds, arch, folder):
    """All of them are compiled, and none with a warning or a spill."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda build: fault_of(build, arch, folder), builds))
    assert found and not any(found), [fault for fault in found if fault]


@pytest.mark.full
def test_every_text_compiles(tmp_path):
    """One build of each."""
    met = {}
    for build in worthy("90a"):
        met.setdefault(build.source, build)
    has_no_fault(met.values(), "90a", tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("arch", [arch for arch in ARCHS if major_for(arch) > 12])
def test_the_whole_table_compiles(arch, tmp_path):
    has_no_fault(worthy(arch), arch, tmp_path)


def test_a_fault_is_found(tmp_path):
    """A value that nobody reads is a warning, and warnings are faults."""
    (build, *_) = worthy("90a")
    text = (KERNELS / f"{build.source}.cu").read_text()
    spoilt = f'{text}\nextern "C" __global__ void spare() {{ int unused; }}\n'
    assert not fault_of(build, "90a", tmp_path)
    assert "unused" in fault_of(build, "90a", tmp_path, spoilt)
