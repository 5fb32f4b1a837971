"""Every kernel compiles for every GPU that it says it serves, on a machine without."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from hpcsgd.backends.cuda.kernels import (
    ARCHS,
    FALLS_BACK,
    VARIANTS,
    all_builds,
    build_of,
    serves,
)
from tests.helpers.kernels import nvrtc
from tests.helpers.kernels.compiles import faults_in, worthy
from tests.helpers.kernels.emulator import KERNELS, source_of
from tests.helpers.kernels.mutants import with_fault
from tests.helpers.kernels.nvrtc import options_for


def one_of_each_text(arch):
    """The first build of each kernel's text."""
    met = set()
    for build in worthy(arch):
        if build.source not in met:
            yield build
        met.add(build.source)


@pytest.mark.cases(1)
@pytest.mark.parametrize("arch", ARCHS)
def test_each_text_compiles(arch):
    has_no_fault(one_of_each_text(arch), arch)


@pytest.mark.full
@pytest.mark.parametrize("arch", ARCHS)
def test_all_of_it_compiles(arch):
    has_no_fault(worthy(arch), arch)


def has_no_fault(builds, arch):
    """All of them are compiled, and none with a warning or a spill."""
    major = nvrtc.major_for(arch)
    assert nvrtc.library(major), f"install the wheel of NVRTC for CUDA {major}"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda build: fault_of(build, arch), builds))
    assert not any(found), [fault for fault in found if fault]


def fault_of(build, arch):
    """What is wrong with it, in words; nothing if it is as it should be."""
    given = (*options_for(build, arch), "--ptxas-options=-v")
    text, major = source_of(build.source), nvrtc.major_for(arch)
    found = nvrtc.compile_text(text, build.entry, given, major)
    if not found.ok or found.cubin[:4] != b"\x7fELF":
        return f"sm_{arch} {build}: {found.log[:3000]}"
    faults = faults_in(found.log)
    return f"sm_{arch} {build}: {faults}" if faults else ""


def test_small_values_of_fp8_are_no_zeros():
    """They begin as floats below 2^-126, which -ftz=true takes out of products."""
    build = build_of("margin", "fp8-e4m3", "90")
    text, given = source_of("margin"), options_for(build, "90")
    found = nvrtc.compile_text(text, "margin", given, 13).ptx
    assert found.count("mul.rn.f32") >= 16 and "fma.rn.ftz.f32" in found
    assert "mul.ftz" not in found and "mul.rn.ftz" not in found


def test_every_source_is_in_the_table():
    named = {variant.source for some in VARIANTS.values() for variant in some}
    assert named == {path.stem for path in KERNELS.glob("*.cu")}


def test_a_fault_is_found():
    """The checks can fail."""
    text = with_fault(source_of("margin"), "float sum =", "flaot sum =")
    (build, *_) = all_builds("90")
    found = nvrtc.compile_text(text, "margin", options_for(build, "90"), 13)
    assert not found.ok and "flaot" in found.log
    spilt = "ptxas . 0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads"
    assert faults_in(spilt) == [spilt] and faults_in("x.cu(3): warning #177-D: unused")


def test_products_one_after_another_are_found():
    """ptxas serializes wgmma where accumulators are read between, and says so."""
    build, text = build_of("gram-wgmma", "bf16", "90"), source_of("gram_wgmma")
    waits = "        wgmma_wait<1>();\n"
    text = with_fault(text, waits, f"{waits}        sums[3] *= 1.5f;\n")
    given = (*options_for(build, "90"), "--ptxas-options=-v")
    (fault,) = faults_in(nvrtc.compile_text(text, "gram_wgmma", given, 13).log)
    assert "wgmma.mma_async instructions are serialized" in fault


def test_wgmma_is_compiled_for_its_architecture_or_not_at_all():
    build, text = build_of("gram-wgmma", "bf16", "90"), source_of("gram_wgmma")
    given = options_for(build, "90")
    assert "--gpu-architecture=sm_90a" in given
    found = nvrtc.compile_text(text, "gram_wgmma", given, 13).ptx
    for shape in ("m64n256k16", "m64n128k16"):
        assert found.count(f"wgmma.mma_async.sync.aligned.{shape}.f32.bf16.bf16") == 4
    for arch in ("90", "100"):
        others = (*given[:-1], f"--gpu-architecture=sm_{arch}")
        failed = nvrtc.compile_text(text, "gram_wgmma", others, 13)
        assert not failed.ok and "wgmma is of sm_90a alone" in failed.log


def test_who_has_wgmma():
    """One architecture; all others make the same tiles without."""
    for arch in ARCHS:
        for element in ("bf16", "fp16"):
            assert serves("gram-wgmma", element, arch) == (arch in ("90", "90a"))
            assert serves(FALLS_BACK["gram-wgmma"], element, arch)
        assert not serves("gram-wgmma", "fp32", arch)
