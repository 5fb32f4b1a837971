"""A GPU through CuPy: what CuPy is asked for, on a CuPy made of NumPy."""

import ctypes
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.backends.cuda import device as cuda
from hpcsgd.backends.cuda import driver
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.errors import ConfigError, DeviceLost, MissingPackage
from hpcsgd.formats import encode
from tests.helpers import strict_cupy
from tests.helpers.fake_cupy import FakeCupy
from tests.helpers.kernels.emulator import KERNELS


@pytest.fixture
def cupy(monkeypatch):
    return strict_cupy.install(monkeypatch)


def wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_cublas_multiplies_parts_of_matrices(cupy):
    """With gaps between rows on all sides, as block columns of a square have."""
    device, rng = cuda.CudaDevice(), np.random.default_rng(0)
    held = [rng.normal(size=(9, 24)).astype(np.float32) for _ in range(2)]
    bits = [encode(one, "bf16").view(np.uint16) for one in held]
    there = [device.empty(one.shape, np.uint16) for one in bits]
    for array, values in zip(there, bits, strict=True):
        device.fill(array, values)
    out = device.zeros((9, 16), np.float32)
    left, right = there[0][2:, :17], there[1][1:6, :17]
    device.gemm_bf16(out[2:, 3:8], left, right)
    found = device.fetch(out)
    wanted = wide(bits[0])[2:, :17] @ wide(bits[1])[1:6, :17].T
    np.testing.assert_allclose(found[2:, 3:8], wanted, rtol=1e-5, atol=1e-5)
    found[2:, 3:8] = 0
    assert not found.any()


def test_products_of_cublas_may_be_part_of_a_graph(cupy):
    """CuPy's own calls of it raise NotImplementedError while a stream is recorded."""
    device, rng = cuda.CudaDevice(), np.random.default_rng(0)
    held = rng.normal(size=(5, 16)).astype(np.float32)
    there = device.empty(held.shape, np.uint16)
    out = device.zeros((5, 5), np.float32)
    action = lambda: device.gemm_bf16(out, there, there)  # noqa: E731
    device.fill(there, np.zeros(held.shape, np.uint16))
    action()
    graph = device.capture(action)
    bits = encode(held, "bf16").view(np.uint16)
    device.fill(there, bits)
    assert not device.fetch(out).any()
    graph()
    wanted = wide(bits) @ wide(bits).T
    np.testing.assert_allclose(device.fetch(out), wanted, rtol=1e-5, atol=1e-5)
    with device.aside():
        action()
    assert strict_cupy.CUBLAS["stream"] is device._side


def test_what_cublas_says_is_an_error(cupy, monkeypatch):
    device = cuda.CudaDevice()
    bits, out = device.zeros((2, 8), np.uint16), device.zeros((2, 2), np.float32)
    device.gemm_bf16(out, bits, bits)
    for status, kind in ((15, ConfigError), (13, DeviceLost)):
        library = device._cublas._library
        monkeypatch.setattr(library, "cublasGemmEx", lambda *_, s=status: s)
        with pytest.raises(kind, match=f"status {status}"):
            device.gemm_bf16(out, bits, bits)


def test_a_graph_repeats_what_it_recorded(cupy):
    device = cuda.CudaDevice()
    source, target = (device.zeros((4,), np.float32) for _ in range(2))

    def action():
        with device.stream:
            cupy.copyto(target, source)

    action()
    replay = device.capture(action)
    device.fill(source, np.arange(4, dtype=np.float32))
    assert not device.fetch(target).any()
    replay()
    np.testing.assert_array_equal(device.fetch(target), np.arange(4))
    assert device.seconds(replay, 3) > 0 and strict_cupy.Graph.launches == 4


def test_a_kernel_is_another_one_with_other_headers(cupy, tmp_path, monkeypatch):
    """CuPy keeps what it compiled under the text and the options alone."""
    device, build = cuda.CudaDevice(), build_of("margin", "bf16", "90")
    device.kernel(build)
    ((entry, given),) = strict_cupy.RawModule.made
    digest = driver._headers(KERNELS)
    assert entry == "margin" and given[-1] == digest
    folder = shutil.copytree(KERNELS, tmp_path / "cuda")
    assert driver._headers(folder) == digest
    with (folder / "device.cuh").open("a") as header:
        header.write("\n")
    assert driver._headers(folder) != digest


def test_instructions_of_one_architecture_are_compiled_past_cupy(cupy, monkeypatch):
    """CuPy asks NVRTC for the "90" of a GPU, whose "90a" has more."""
    device, build = cuda.CudaDevice(), build_of("gram-wgmma", "bf16", "90")
    launch = device.kernel(build)
    ((entry, given),) = strict_cupy.RawModule.made
    assert entry == "gram_wgmma" and "-arch=sm_90a" in given
    assert set(driver.OF_CUPY) < set(given) and "-DELEMENT=1" in given
    assert device.kernel(build) is launch and not any(cupy.cuda.nvrtc.programs.values())

    def fail(*_):
        raise cupy.cuda.nvrtc.NVRTCError("NVRTC_ERROR_COMPILATION (6)")

    monkeypatch.setattr(cupy.cuda.nvrtc, "compileProgram", fail)
    with pytest.raises(ConfigError, match="kernel gram_wgmma for sm_90 .program 2: an"):
        device.kernel(build_of("gram-wgmma", "fp16", "90"))
    assert not any(cupy.cuda.nvrtc.programs.values())


@pytest.fixture
def nothing_opened(monkeypatch):
    """No GPU that another test has opened, and none left behind."""
    monkeypatch.setattr(cuda, "users_of_gpus", {})
    cuda.opened.devices.clear()
    yield
    cuda.opened.devices.clear()


def test_a_gpu_is_that_of_the_thread_that_asks(cupy, monkeypatch, nothing_opened):
    """CuPy refuses a stream where another GPU is the current one."""
    used = []
    monkeypatch.setattr(strict_cupy.Device, "use", lambda self: used.append(self.id))
    first = cuda.device_of_rank(0)
    before = len(used)
    assert cuda.device_of_rank(0) is first and used[before:] == [0]


def test_threads_have_streams_of_their_own(cupy, nothing_opened):
    """On one they would record each other's launches; blocks that meet wait on one."""
    first, found = cuda.device_of_rank(0), []
    assert not first.is_shared

    def other():
        own = cuda.device_of_rank(0)
        found.append((own is first, own.stream is first.stream, own.is_shared))
        assert cuda.device_of_rank(0) is own

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [(False, False, True)]
    assert cuda.device_of_rank(0) is first and not first.is_shared


def test_memory_is_that_of_the_stream(cupy):
    """What is let go of may be given at once to who asks on the stream it came from."""
    asked, plain = [], cupy.empty

    def empty(*given, **more):
        asked.append(cupy.cuda.get_current_stream())
        return plain(*given, **more)

    device = cuda.CudaDevice()
    cupy.empty = empty
    device.empty((3,), np.float32)
    assert asked == [device.stream]


def test_rows_of_a_caller_may_still_be_made(monkeypatch):
    """On a stream of the caller, which no stream of ours waits for by itself."""
    cupy = FakeCupy()
    device, rows = cuda.CudaDevice(0, cupy), cupy.empty((3, 5), np.float32)
    held = device.zeros((3, 8), np.float32)
    device.wait()
    rows.fill(7.0)
    device.put_rows(held, rows)
    found = device.fetch(held)
    assert (found[:, :5] == 7).all() and not found[:, 5:].any()


def test_a_compiler_leaves_files_as_they_were(cupy, monkeypatch):
    """NVRTC of CUDA 12.0 to 12.4 leaves its thread in the locale C."""
    libc = ctypes.CDLL(None)
    libc.newlocale.restype = libc.uselocale.restype = ctypes.c_void_p
    libc.uselocale.argtypes = [ctypes.c_void_p]
    plain = libc.newlocale(0x1FBF, b"C", None)
    own = libc.newlocale(0x1FBF, b"C.UTF-8", None)
    before = libc.uselocale(own)
    get = strict_cupy.RawModule.get_function

    def leaves_another(module, name):
        found = get(module, name)
        libc.uselocale(plain)
        return found

    monkeypatch.setattr(strict_cupy.RawModule, "get_function", leaves_another)
    try:
        cuda.CudaDevice().kernel(build_of("margin", "bf16", "90"))
        assert libc.uselocale(None) == own
        libc.uselocale(plain)  # and where it is so by itself
        assert driver.ascii_of(KERNELS / "margin.cu").isascii()
    finally:
        libc.uselocale(before)


def test_what_cupy_lacks_is_named(cupy, monkeypatch):
    device = cuda.CudaDevice()

    def fail(**_):
        raise RuntimeError("Failed to auto-detect CUDA root directory")

    monkeypatch.setattr(cupy, "RawModule", fail)
    with pytest.raises(ConfigError, match=r"auto-detect.*\[ctk\]"):
        device.kernel(build_of("update", "bf16", "90"))

    def missing():
        raise ImportError("libcublasLt.so.13: no such file")

    monkeypatch.setattr(cupy.cuda.device, "get_cublas_handle", missing)
    small = SimpleNamespace(shape=(1, 8))
    with pytest.raises(MissingPackage, match="gram_kernel = 'own'"):
        device.gemm_bf16(small, small, small)


def test_more_shared_memory_is_asked_for_once(cupy):
    device = cuda.CudaDevice()
    launch = device.kernel(build_of("round", "bf16", "90"))
    values = device.zeros((4,), np.float32)
    for shared in (100 * 1024, 60 * 1024):
        launch(1, 256, (values, np.int32(4)), shared=shared)
    with pytest.raises(AssertionError):
        launch(1, 256, (values, np.int32(4)), shared=300 * 1024)
