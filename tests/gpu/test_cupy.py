"""What is asked of CuPy is there, under these names: the real one, GPU or not."""

import inspect
import re
import warnings
from functools import reduce
from pathlib import Path

import pytest

from hpcsgd.backends.cuda import driver, kernels
from hpcsgd.backends.cuda.driver import ascii_of
from tests.helpers import strict_cupy
from tests.helpers.kernels.emulator import KERNELS

ROOT = Path(__file__).parents[2]
FOLDERS = ("hpcsgd/backends", "hpcsgd/comm", "hpcsgd/data", "benchmarks/gpu")
USED = re.compile(r"\bcupy((?:\.\w+)+)|\bruntime((?:\.\w+)+)|_nccl\.(\w+)")

# Parameters as CuPy names them, in the order in which they are given.
CALLS = {
    "cuda.runtime.memcpyAsync": "dst src size kind stream",
    "cuda.runtime.eventQuery": "event",
    "cuda.runtime.getDeviceProperties": "device",
    "cuda.runtime.memGetInfo": "",
    "cuda.Stream": "null non_blocking ptds",
    "cuda.Stream.begin_capture": "self mode",
    "cuda.Stream.end_capture": "self",
    "cuda.Stream.wait_event": "self event",
    "cuda.Graph.launch": "self stream",
    "cuda.Event": "block disable_timing interprocess",
    "cuda.Event.record": "self stream",
    "cuda.get_elapsed_time": "start_event end_event",
    "cuda.get_current_stream": "device_id",
    "cuda.alloc_pinned_memory": "size",
    "cuda.device.get_cublas_handle": "",
    "RawModule.get_function": "self name",
    "cuda.nvrtc.createProgram": "src name headers include_names",
    "cuda.nvrtc.compileProgram": "prog options",
    **{
        f"cuda.nvrtc.{name}": "prog"
        for name in ("getCUBIN", "getProgramLog", "destroyProgram")
    },
    "asnumpy": "a stream order out",
    "take": "a indices axis out",
    "copyto": "dst src",
    "cuda.nccl.get_unique_id": "",
    "cuda.nccl.groupStart": "",
    "cuda.nccl.groupEnd": "",
    "cuda.nccl.NcclCommunicator": "ndev commId rank",
    **{
        f"cuda.nccl.NcclCommunicator.{name}": f"self {words} stream"
        for name, words in {
            "allReduce": "sendbuf recvbuf count datatype op",
            "reduce": "sendbuf recvbuf count datatype op root",
            "allGather": "sendbuf recvbuf count datatype",
            "broadcast": "sendbuff recvbuff count datatype root",
            "reduceScatter": "sendbuf recvbuf recvcount datatype op",
            "send": "sendbuf count datatype peer",
            "recv": "recvbuf count datatype peer",
        }.items()
    },
    **{
        f"cuda.nccl.NcclCommunicator.{name}": "self"
        for name in ("abort", "check_async_error", "destroy")
    },
}


@pytest.fixture(scope="module")
def cupy(request):
    """Real, or the test is skipped; it needs no driver to be imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it finds no library for
        try:
            import cupy
        except ImportError as error:
            if request.config.getoption("--require-gpu"):
                raise
            pytest.skip(str(error))
        import cupy.cuda.nccl
    return cupy


def found(module, path):
    """What stands behind a name with dots."""
    return reduce(getattr, path.split("."), module)


def parameters_of(call):
    """Their names; what is compiled says them in the first line of its words."""
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        said = re.search(r"\((.*)\)", call.__doc__.strip().splitlines()[0])[1]
        words = [one.split("=")[0].split() for one in said.split(",") if one.strip()]
        return [word[-1] for word in words if word != ["*"]]


@pytest.mark.parametrize("path", CALLS)
def test_parameters_are_those_that_are_given(cupy, path):
    if "nccl" in path and not cupy.cuda.nccl.available:
        pytest.skip("CuPy finds no NCCL")
    wanted, names = CALLS[path].split(), parameters_of(found(cupy, path))
    assert names[: len(wanted)] == wanted


def test_every_name_in_our_texts_is_there(cupy):
    """As the texts spell them, so that a new one is asked for, too."""
    asked = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).glob("**/*.py"):
            for whole, of_runtime, of_nccl in USED.findall(path.read_text("utf-8")):
                asked |= {whole[1:]} if whole else set()
                asked |= {f"cuda.runtime{of_runtime}"} if of_runtime else set()
                asked |= {f"cuda.nccl.{of_nccl}"} if of_nccl else set()
    asked = {path.removesuffix(".__version__") for path in asked}
    missing = [path for path in sorted(asked) if not _is_there(cupy, path)]
    assert len(asked) > 30 and not missing, missing


def _is_there(cupy, path):
    if path.startswith("cuda.nccl") and not cupy.cuda.nccl.available:
        return True
    try:
        found(cupy, path)
    except AttributeError:
        return False
    return True


def test_names_of_the_strict_one_are_those_of_cupy(cupy, monkeypatch):
    """Tests without CuPy are told the truth."""
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as own:
        strict = strict_cupy.install(own)
    modules = {"": strict, "cuda": strict.cuda, "cuda.runtime": strict.cuda.runtime}
    for name, module in modules.items():
        real = found(cupy, name) if name else cupy
        own = [one for one in vars(module) if not one.startswith("__")]
        assert not [one for one in own if not hasattr(real, one)], name
    for name in ("memcpyHostToDevice", "memcpyDeviceToHost", "memcpyDeviceToDevice"):
        assert getattr(strict.cuda.runtime, name) == getattr(cupy.cuda.runtime, name)
    relaxed = cupy.cuda.runtime.streamCaptureModeRelaxed
    assert strict.cuda.runtime.streamCaptureModeRelaxed == relaxed


@pytest.mark.parametrize("kind", strict_cupy.LAUNCHED)
def test_scalars_of_launches_keep_their_size(cupy, kind):
    scalar = pytest.importorskip("cupy._core._scalar").CScalar(kind(1))
    assert scalar.get_numpy_type() is kind


def test_attributes_of_a_device_are_named_so(cupy):
    """CuPy leaves out what its names begin with."""
    names = vars(cupy.cuda.runtime)
    assert {"cudaDevAttrMultiProcessorCount", "cudaDevAttrL2CacheSize"} <= set(names)


def test_errors_are_of_the_kinds_that_are_caught(cupy):
    runtime, driver = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver
    assert runtime(2).status == 2
    assert [runtime.__base__, driver.CUDADriverError.__base__] == [RuntimeError] * 2
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert not issubclass(cupy.cuda.compiler.CompileException, RuntimeError)
    assert cupy.cuda.nvrtc.NVRTCError.__base__ is RuntimeError


@pytest.mark.parametrize("kernel", ["gram-64", "recurrence-cluster-logistic"])
def test_cupys_own_options_go_with_ours(cupy, kernel):
    """As it puts them together; none is said twice, which NVRTC refuses."""
    core = pytest.importorskip("cupy._core.core")
    compiler = cupy.cuda.compiler
    element = "bf16" if kernel.startswith("gram") else "fp32"
    build = kernels.build_of(kernel, element, "90")
    options = kernels.options(build, str(KERNELS))
    try:
        cupy.cuda.nvrtc.getVersion()
        options = core.assemble_cupy_compiler_options(options)
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(str(error))
    options += ("-ftz=true", "-arch=sm_90", "--device-as-default-execution-space")
    text = ascii_of(KERNELS / f"{build.source}.cu")
    program = compiler._NVRTCProgram(text, f"{kernel}.cu", method="cubin")
    cubin, _ = program.compile(options)
    assert cubin[:4] == b"\x7fELF"


def test_texts_of_one_arch_are_compiled_past_cupy(cupy):
    """As `RawKernels` does it, up to where a GPU is needed."""
    nvrtc = cupy.cuda.nvrtc
    try:
        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        pytest.skip(str(error))
    build = kernels.build_of("gram-wgmma", "bf16", "90")
    text = ascii_of(KERNELS / f"{build.source}.cu")
    program = nvrtc.createProgram(text, "gram_wgmma.cu", (), ())
    arch = f"-arch=sm_{kernels.compiled_for(build, '90')}"
    given = (*kernels.options(build, str(KERNELS)), *driver.OF_CUPY, arch)
    nvrtc.compileProgram(program, given)
    assert arch.endswith("90a") and nvrtc.getCUBIN(program)[:4] == b"\x7fELF"
    nvrtc.destroyProgram(program)
    wrong = nvrtc.createProgram("flaot x;", "wrong.cu", (), ())
    with pytest.raises(nvrtc.NVRTCError):
        nvrtc.compileProgram(wrong, ())
    assert "flaot" in nvrtc.getProgramLog(wrong)
