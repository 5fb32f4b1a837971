"""The kernels of other processors: which objects are made, and that they compile.

`make test-aarch64` runs the tests of the kernels for Arm; here a compiler is enough.
"""

import runpy
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import setuptools

from hpcsgd.backends import compiled_calls
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels" / "cpu"
PROBE = Path(__file__).parent / "aarch64_probe.c"
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
APT_LINE = f"on Debian: apt-get install -y {PACKAGES}"
needs_cross = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason=f"no {CROSS} is here; {APT_LINE}"
)
needs_both = pytest.mark.skipif(
    shutil.which(CROSS) is None or shutil.which(EMULATOR) is None,
    reason=f"no {CROSS} or no {EMULATOR} is here; {APT_LINE}",
)


def setup_on(machine, monkeypatch):
    """Return the names in setup.py, and its extensions, on a processor."""
    made = {}
    monkeypatch.setattr(setuptools, "setup", made.update)
    monkeypatch.setattr("platform.machine", lambda: machine)
    names = runpy.run_path(str(ROOT / "setup.py"))
    return names, made["ext_modules"]


@pytest.mark.parametrize(
    "machine, sets",
    [
        ("x86_64", compiled_calls.X86_SETS),
        ("AMD64", compiled_calls.X86_SETS),
        ("aarch64", compiled_calls.ARM_SETS),
        ("arm64", compiled_calls.ARM_SETS),
        ("ppc64le", ("portable",)),
        ("riscv64", ("portable",)),
    ],
)
def test_a_processor_has_its_objects(machine, sets, monkeypatch):
    names, extensions = setup_on(machine, monkeypatch)
    assert tuple(names["sets_of"](machine)) == sets
    objects = [e for e in extensions if "._cpu_" in e.name]
    assert [e.name.partition("._cpu_")[2] for e in objects] == list(sets)
    flags = {flag for e in extensions for flag in e.extra_compile_args}
    assert any("avx" in flag for flag in flags) == (len(sets) > 2)
    assert any("armv8" in flag for flag in flags) == ("neonbf16" in sets)


def test_ranks_on_two_kinds_of_processors_use_what_both_have(monkeypatch):
    """A rank with the set of another processor; the kernels that both have remain."""
    if not compiled_calls.available():
        pytest.skip(compiled_calls.why())
    monkeypatch.setattr(compiled_calls, "settled", [])
    foreign = {*compiled_calls.X86_SETS, *compiled_calls.ARM_SETS}
    foreign -= set(compiled_calls.SETS)
    try:
        compiled_calls.settle([compiled_calls.instructions(), sorted(foreign)[0]])
        assert compiled_calls.instructions() == "portable"
    finally:
        monkeypatch.undo()
        compiled_calls.best.cache_clear()
        compiled_calls.functions.cache_clear()


@pytest.fixture
def extensions(monkeypatch):
    """The extensions of an Arm processor."""
    return setup_on("aarch64", monkeypatch)[1]


def compile_c(compiler, *arguments):
    done = subprocess.run(
        [compiler, *map(str, arguments)], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr[-3000:]


@needs_cross
def test_every_kernel_compiles_for_arm_without_a_warning(extensions, tmp_path):
    """With the flags of each object; calls of Python by the headers of this one."""
    strict = ["-Wall", "-Wextra", "-Werror", "-fPIC", "-O1", "-c"]
    headers = ["-I", sysconfig.get_path("include")]
    for extension in extensions:
        flags = [f for f in extension.extra_compile_args if not f.startswith("-O")]
        for source in extension.sources:
            target = tmp_path / "object.o"
            given = [*strict, *flags, *headers, ROOT / source, "-o", target]
            compile_c(CROSS, *given)
    compiled = {source for e in extensions for source in e.sources}
    assert compiled == {f"kernels/cpu/{path.name}" for path in KERNELS.glob("*.c")}


def probe(compiler, flags, target, *runner):
    """Compile the probe with the kernels it calls, and return what it prints."""
    names = ("level", "gram", "gram_pairs", "rows", "csr", "losses", "threads")
    sources = [KERNELS / f"{name}.c" for name in names]
    options = ["-O2", "-ffp-contract=fast", "-Wno-psabi", "-I", KERNELS]
    compile_c(
        compiler, *options, *flags, PROBE, *sources, "-o", target, "-lm", "-pthread"
    )
    done = subprocess.run(
        [*runner, str(target)], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        found[name] = np.array(numbers, dtype=float)
    return found


@needs_both
@pytest.mark.parametrize("name", compiled_calls.ARM_SETS)
def test_kernels_for_arm_compute_what_those_here_do(name, monkeypatch, tmp_path):
    """The same inputs in both; sums are in another order where there are pairs."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler is here")
    flags = setup_on("aarch64", monkeypatch)[0]["sets_of"]("aarch64")[name]
    emulator = [EMULATOR, "-cpu", "max", "-L", LIBRARIES]
    arm = probe(CROSS, flags, tmp_path / "arm", *emulator)
    here = probe("cc", (), tmp_path / "here")
    assert arm.pop("level") == [1], "qemu's processor has bf16"
    here.pop("level")
    assert ("gram_pairs" in arm) == (name == "neonbf16")
    if "gram_pairs" in arm:
        here["gram_pairs"] = here["gram_bf16"]
    assert set(arm) == set(here) and len(arm) >= 6
    for key, values in arm.items():
        scale = np.abs(here[key]).max()
        assert scale > 0 and np.isfinite(values).all()
        np.testing.assert_allclose(values, here[key], atol=6e-6 * scale, err_msg=key)


@needs_both
def test_a_processor_without_bf16_takes_the_portable_object(tmp_path):
    """An Armv8.0 processor, as that of a Raspberry Pi 4."""
    emulator = [EMULATOR, "-cpu", "cortex-a72", "-L", LIBRARIES]
    assert probe(CROSS, (), tmp_path / "arm", *emulator)["level"] == [0]
