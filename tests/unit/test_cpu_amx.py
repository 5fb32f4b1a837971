"""The AMX kernels: on emulated tiles everywhere, compiled for the real ones."""

import ctypes
import shlex
import subprocess
import sysconfig
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.backends import compiled_calls
from hpcsgd.files import asset_path as asset
from hpcsgd.formats import encode, widen_bf16
from hpcsgd.glm.unrolling import blocks_of
from tests.helpers.cpu import SIZES, WIDTHS, sampled
from tests.helpers.limits import HANG

KERNELS = asset("kernels/cpu/gram_amx.c").parent
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "cc")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
AMX = (*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16")
LEAST = Fraction(2) ** -126  # the smallest normal float32
GUARD = 0x7FC07FC0  # behind what a kernel may write


def compile_c(*arguments, text=None):
    """Run the compiler on kernels/cpu; None where there is none."""
    command = [*COMPILER, "-I", str(KERNELS), *map(str, arguments)]
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=HANG
        )
    except FileNotFoundError:
        return None


def knows(flags):
    """True where there is a compiler that takes these flags."""
    done = compile_c(*flags, "-x", "c", "-E", "-", text="")
    return done is not None and done.returncode == 0


def packings():
    """How rows are packed: by plain C, and by AVX-512 where it runs."""
    runs = compiled_calls.instructions() in ("avx512", "avx512bf16", "amx")
    return {"plain": (), **({"avx512": AVX512} if runs else {})}


@pytest.fixture(scope="module", params=packings())
def emulated(request, tmp_path_factory):
    """The kernels with emulated tiles."""
    if not knows(()):
        pytest.skip("there is no C compiler here")
    probe = KERNELS.parents[1] / "tests" / "unit" / "tiles_probe.c"
    out = tmp_path_factory.mktemp("tiles") / f"tiles_{request.param}.so"
    flags = ["-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi"]
    flags += [*packings()[request.param], "-DHPCSGD_TILES_EMULATED"]
    done = compile_c(*flags, probe, "-o", out, "-lm", "-pthread")
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(out))
    yield library
    assert ctypes.c_int.in_dll(library, "tile_faults").value == 0
    assert not library.probe_is_open()


@pytest.fixture
def kernels(emulated, monkeypatch):
    """The emulated kernels in place of those that run here."""
    found = compiled_calls.bf16_gram(emulated)
    monkeypatch.setattr(compiled_calls, "functions", lambda: found)
    return emulated


def gram(stored, rows, sizes):
    """The packed Gram; what lies behind it and behind the scratch stays."""
    blocks = blocks_of(sizes)
    out = np.full(blocks.gram_words + 9, np.float32(7))
    room = compiled_calls.KernelScratch()
    words = compiled_calls.functions()["gram_room"](blocks.rows)
    panels = room.array("panels", words + 64, np.uint32)
    panels[:] = GUARD
    starts = np.array(blocks.starts)
    compiled_calls.strict_gram_pairs(
        stored, rows, starts, out[: blocks.gram_words], room
    )
    assert (out[blocks.gram_words :] == 7).all()
    assert (panels[words:] == GUARD).all()
    return out[: blocks.gram_words]


def gram_of(Y, sizes):
    """The same by NumPy in the dtype of Y."""
    starts = blocks_of(sizes).starts
    parts = [
        (Y[a:b] @ Y[:a].T).reshape(-1) for a, b in zip(starts, starts[1:], strict=False)
    ]
    return np.concatenate(parts)


RAGGED = [*SIZES, (40, 3, 60), (1, 16, 16, 32), (100, 5, 200), (33,) * 3, (5, 300)]


@pytest.mark.cases(11)
@pytest.mark.parametrize("sizes", RAGGED, ids=lambda s: f"{len(s)}x{s[0]}")
@pytest.mark.cases(3)
@pytest.mark.parametrize("d", [1, 31, 33, 512, 513])
def test_sums_of_integers_are_exact(kernels, d, sizes):
    """Every product lies where it belongs: what is exact is equal bit for bit."""
    m, spare = sum(sizes), d % 3
    rng = np.random.default_rng(d)
    X = rng.integers(-9, 10, size=(30, d + spare)).astype(np.float32)
    rows = rng.integers(0, 30, size=m)
    found = gram(encode(X, "bf16")[:, :d], rows, sizes)
    np.testing.assert_array_equal(found, gram_of(X[rows, :d].astype(int), sizes))


@pytest.mark.parametrize("d", WIDTHS)
def test_sums_of_any_numbers(kernels, d):
    """The error of sums whose order is not that of the oracle; twice the same bits."""
    sizes = (7, 20, 1, 12)
    stored, exact, rows = sampled(30, d, sum(sizes), "bf16", spare=d % 2)
    found = gram(stored, rows, sizes)
    error = np.abs(found - gram_of(exact[rows], sizes))
    assert (error <= 1e-6 * gram_of(np.abs(exact[rows]), sizes)).all()
    assert gram(stored, rows, sizes).tobytes() == found.tobytes()


@pytest.mark.parametrize("sizes", RAGGED, ids=lambda s: f"{len(s)}x{s[0]}")
@pytest.mark.parametrize("d", [33, 1100])
def test_threads_change_no_bit(kernels, d, sizes):
    """Each has tiles of its own, which are released behind its part."""
    stored, _, rows = sampled(30, d, sum(sizes), "bf16", spare=d % 2)
    use = kernels.hpcsgd_set_threads
    use.argtypes, use.restype = (ctypes.c_int64, ctypes.c_int64), None
    alone = gram(stored, rows, sizes).tobytes()
    for count in (2, 3, 5):
        use(count, 1)
        assert gram(stored, rows, sizes).tobytes() == alone
    use(1, 0)


@pytest.mark.parametrize("d", [5, 700])
def test_denormals_are_zeros(kernels, d):
    """Read as zero, written as zero; what is beside them counts."""
    rng, sizes = np.random.default_rng(d), (20, 20, 3)
    bits = rng.integers(1, 0x80, size=(43, d)).astype(np.uint16)  # denormals alone
    large = rng.uniform(size=(43, d)) < 0.3
    bits[large] = encode(np.float32(2.0**60), "bf16")
    bits[::7] = encode(np.float32(2.0**-70), "bf16")  # squares are denormal
    found = gram(bits, np.arange(43), sizes)
    values = widen_bf16(bits, np.float64)
    values[np.abs(values) < float(LEAST)] = 0.0
    wanted = gram_of(values, sizes)
    wanted[np.abs(wanted) < float(LEAST)] = 0.0
    np.testing.assert_array_equal(found, wanted)
    assert (wanted == 0).any() and (wanted != 0).any()


def test_no_number_that_is_none_gets_lost(kernels):
    """One NaN makes the products of its row, and of no other, NaN."""
    stored, _, rows = sampled(64, 40, 64, "bf16")
    stored = stored.copy()
    stored[20, 33] = 0x7FC0
    found = gram(stored, np.arange(64), (16,) * 4)
    Y = np.zeros((64, 1))
    Y[20] = np.nan
    where = np.isnan(gram_of(Y + 1, (16,) * 4))
    np.testing.assert_array_equal(np.isnan(found), where)


def rounded(exact):
    """To 24 bits, ties to even; zero below the smallest normal number."""
    if exact == 0:
        return exact
    size = abs(exact).numerator.bit_length() - abs(exact).denominator.bit_length()
    while abs(exact) >= Fraction(2) ** (size + 1):
        size += 1
    while abs(exact) < Fraction(2) ** size:
        size -= 1
    unit = Fraction(2) ** (size - 23)
    near = round(exact / unit) * unit
    return near if abs(near) >= LEAST else Fraction(0)


def by_the_manual(left, right, sums):
    """TDPBF16PS in rational numbers: (M, 2K), (K, 2N), (M, N)."""
    found = np.empty(sums.shape)
    for m, n in np.ndindex(sums.shape):
        chains = [Fraction(0), Fraction(0)]
        for k in range(right.shape[0]):
            for odd in (0, 1):
                a, b = left[m, 2 * k + odd], right[k, 2 * n + odd]
                product = flushed(a) * flushed(b)
                chains[odd] = rounded(chains[odd] + product)
        both = rounded(chains[0] + chains[1])
        found[m, n] = float(rounded(flushed(sums[m, n]) + both))
    return found


def flushed(value):
    exact = Fraction(float(value))
    return exact if abs(exact) >= LEAST else Fraction(0)


def shapes(rows, pairs, columns):
    """What ldtilecfg reads, for sums of rows × columns over as many pairs."""
    config = np.zeros(64, dtype=np.uint8)
    config[0] = 1
    config[16:22].view(np.uint16)[:] = 4 * columns, 4 * pairs, 4 * columns
    config[48:51] = rows, rows, pairs
    return config


@pytest.mark.parametrize("scale", [0, 30, 63])
@pytest.mark.parametrize("shape", [(16, 16, 16), (3, 5, 7), (1, 1, 1)])
def test_an_instruction_is_that_of_the_manual(emulated, shape, scale):
    """Chains, their order and rounding; of 2^-63 many products are denormal."""
    rows, pairs, columns = shape
    rng = np.random.default_rng(scale + rows)
    draw = rng.standard_normal((3, 16, 32)) * 2.0 ** -(
        scale + rng.integers(0, 3, (3, 16, 32))
    )
    left, right = (encode(a.astype(np.float32), "bf16") for a in draw[:2])
    sums = (draw[2, :, :16] * 2.0**-scale).astype(np.float32)
    found = sums.copy()
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (left, right, found)]
    config = shapes(*shape)
    emulated.probe_dot(ctypes.c_void_p(config.ctypes.data), *pointers)
    a, b = widen_bf16(left, np.float64), widen_bf16(right, np.float64)
    part = sums[:rows, :columns].astype(float)
    wanted = by_the_manual(a[:rows, : 2 * pairs], b[:pairs, : 2 * columns], part)
    np.testing.assert_array_equal(found[:rows, :columns], wanted)
    if scale == 63 and rows > 1:
        assert (wanted == 0).any() and (wanted != 0).any()


def test_the_real_instructions_are_in_the_object():
    """The same source without emulation, and tiles released behind every kernel."""
    if not knows(AMX):
        pytest.skip("there is no C compiler here that knows AMX")
    done = compile_c(*AMX, "-O3", "-S", "-o", "-", KERNELS / "gram_amx.c")
    assert done.returncode == 0, done.stderr
    for name in ("multiply_part", "hpcsgd_tile_peak"):
        body = done.stdout.split(f"\n{name}:")[1].split("\t.size\t")[0]
        assert body.count("ldtilecfg") >= 1 and body.count("tilerelease") >= 1
    for instruction in ("tdpbf16ps", "tileloadd", "tilestored", "tilezero"):
        assert done.stdout.count(instruction) >= 4, instruction


@pytest.fixture
def machine(monkeypatch):
    """A processor with AMX whose system answers as `machine.allows` says."""
    told = SimpleNamespace(allows=True, asked=0)

    def ask():
        told.asked += 1
        return int(told.allows)

    library = SimpleNamespace(hpcsgd_level=lambda: 4, hpcsgd_ask_for_tiles=ask)
    monkeypatch.setattr(
        compiled_calls, "load_library", lambda name: (library, f"compiled: {name}")
    )
    monkeypatch.setattr(compiled_calls, "settled", [])
    monkeypatch.delenv("HPCSGD_ISA", raising=False)
    compiled_calls.best.cache_clear()
    yield told
    compiled_calls.best.cache_clear()


def test_tiles_are_used_where_the_system_lets_us(machine):
    assert compiled_calls.best()[1:] == ("amx", "compiled: amx")
    assert machine.asked == 1


def test_a_system_that_refuses_tiles_is_said(machine):
    machine.allows = False
    _, name, why = compiled_calls.best()
    assert name == "avx512bf16" and "refuses the tiles of AMX" in why


def test_a_cap_below_asks_for_no_tiles(machine, monkeypatch):
    monkeypatch.setenv("HPCSGD_ISA", "avx512bf16")
    assert compiled_calls.best()[1] == "avx512bf16" and machine.asked == 0


def test_ranks_without_tiles_settle_below(machine):
    assert compiled_calls.best()[1] == "amx"
    assert (
        compiled_calls.resolve_isa(["amx", "avx2"])
        and compiled_calls.best()[1] == "avx2"
    )


def test_the_peak_is_that_of_whole_tiles(emulated, monkeypatch):
    """Sixteen rows by sixteen by 32 columns a product, four of them a round."""
    monkeypatch.setattr(compiled_calls, "best", lambda: (emulated, "amx", ""))
    assert compiled_calls.tile_peak()(3) == 3 * 4 * 16 * 16 * 32
    monkeypatch.setattr(compiled_calls, "best", lambda: (emulated, "avx512bf16", ""))
    assert compiled_calls.tile_peak() is None
