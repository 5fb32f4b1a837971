"""Every kernel once on a GPU, with the arrays of its tests and their float64 beside.

python -m benchmarks.gpu.every_kernel     # what compute-sanitizer is given to watch
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.backends.cuda.kernels import FAMILIES, Build, serves

DIFFERS = 3  # what this exits with
ONCE = (1,)  # seeds are of the emulation
ALONE = ("gram_wgmma",)  # what no GPU has run yet: a fault ends a process
KINDS = {
    ctypes.c_int: np.int32,
    ctypes.c_uint: np.uint32,
    ctypes.c_longlong: np.int64,
    ctypes.c_float: np.float32,
    ctypes.c_double: np.float64,
}


class OnGpu:
    """Looks like tests.helpers.kernels.emulator.Kernel, and runs on a GPU."""

    device: Any
    launched = 0
    cut_off = 2.0**-22  # at most, by a product of tensor cores and its sum

    def __init__(
        self, name: str, *defines: str, text: Any = None, entry: str | None = None
    ) -> None:
        if text is not None:
            raise ValueError("a GPU takes the kernels that are there")
        self.launch = self.device.kernel(Build(name, entry or name, defines))

    def __call__(
        self,
        grid: Any,
        block: int,
        arguments: Any,
        *,
        shared: int = 0,
        cluster: int = 1,
        **_: Any,
    ) -> None:
        """Copy there, launch, copy back."""
        arrays = {id(a): a for a in arguments if isinstance(a, np.ndarray)}
        there = {key: self._sent(array) for key, array in arrays.items()}
        given = [self._given(one, arrays, there) for one in arguments]
        self.launch(grid, block, given, shared=shared, cluster=cluster)
        self.device.synchronize()
        for key, array in arrays.items():
            array[...] = self.device.fetch(there[key])
        OnGpu.launched += 1

    def _sent(self, array: Any) -> Any:
        held = self.device.empty(array.shape, array.dtype)
        if array.size:
            self.device.fill(held, array)
        return held

    def _given(self, one: Any, arrays: dict[int, Any], there: dict[int, Any]) -> Any:
        if one is None:
            return None
        if isinstance(one, np.ndarray):
            return there[id(one)]
        if isinstance(one, ctypes.c_void_p):
            return _inside(one, arrays, there)
        if isinstance(one, bool | int | np.integer):
            return np.int32(one)
        if isinstance(one, float | np.floating):
            return np.float32(one)
        return KINDS[type(one)](one.value)


def _inside(
    pointer: ctypes.c_void_p, arrays: dict[int, Any], there: dict[int, Any]
) -> Any:
    """An address in one of the arrays, as a part of what is there."""
    if pointer.value is None:
        return None
    for key, array in arrays.items():
        first = array.ctypes.data
        if first <= pointer.value < first + array.nbytes:
            return there[key].reshape(-1)[(pointer.value - first) // array.itemsize :]
    raise ValueError("an address in none of the arrays")


def calls() -> dict[str, Callable[[Any], None]]:
    """Module of tests.helpers.kernels.checks -> its launches, on small arrays."""
    some = "bf16"
    return {
        "average": lambda m: m.agrees(257, 300),
        "cast": lambda m: (
            m.casts_agree(some),
            m.gather_agrees(some, *m.SIZES[1], False),
            m.gather_agrees(some, *m.SIZES[1], True),
        ),
        "columns": lambda m: m.agrees(some, *m.SIZES[-1]),
        "csr": _csr,
        "direct_steps": lambda m: m.launches_agree(
            m.walk_of(*m.SIZES[1], some), some, seeds=ONCE
        ),
        "gather_steps": lambda m: m.launches_agree(
            m.walk_of(*m.SIZES[1], some), some, seeds=ONCE
        ),
        "gram": _gram,
        "margin": lambda m: m.agrees(some, *m.SIZES[1]),
        "pack": lambda m: m.agrees(m.STARTS[-2]),
        "parts": lambda m: m.adds_as_the_host(*m.SIZES[3], 0, None),
        "pieces": lambda m: m.rows_agree(*m.SIZES[1], some),
        "recurrence": _recurrence,
        "rules": lambda m: (
            *(m.agrees(name, 257, first=0) for name in m.RULES),
            m.sums_agree(257),
        ),
        "round": lambda m: m.agrees(some),
        "sample": lambda m: m.agrees(True),
        "softmax": lambda m: m.check(None),
        "update": lambda m: m.agrees(some, *m.SIZES[1]),
        "gram_wgmma": _gram_wgmma,
    }


def _csr(module: Any) -> None:
    case = module.case_of((("bf16"), 32), module.SIZES[1], None)
    for columns in ((1,), module.COLUMNS[1]):
        module.margins_agree(case, columns[0])
        module.update_agrees(case, *columns)
    module.tiles_agree(case, *module.COLUMNS[1])
    module.gram_agrees(case, 16)


def _gram(module: Any) -> None:
    case = module.CASES[2]
    module.agrees("bf16", 64, module.PLAIN, case, None, ONCE)
    module.agrees("bf16", 128, ("ELEMENT=1", "TB=128"), case, None, ONCE)
    module.agrees("fp32", 64, ("ELEMENT=3", "TB=64", "FFMA=1"), case, None, ONCE)
    module.agrees("fp32", 64, ("ELEMENT=3", "TB=64", "TF32=1"), case, None, ONCE)


def _gram_wgmma(module: Any) -> None:
    """Pairs and tiles alone, cut and whole, where the GPU has it."""
    if serves("gram-wgmma", "bf16", OnGpu.device.arch):
        for case in module.CASES[1:]:
            module.agrees("bf16", case, None, ONCE)
        module.agrees("fp16", module.CASES[2], None, ONCE)


def _recurrence(module: Any) -> None:
    for cluster in (1, module.CLUSTER):
        for family in FAMILIES:
            sizes = (33,) * 6
            given = (family, sizes, "sgd", module.SIDES, cluster)
            module.agrees(*given, seeds=ONCE)


def proved() -> list[str]:
    """Modules whose kernels have run on a GPU before."""
    return [name for name in calls() if name not in ALONE]


def wrong(names: Sequence[str]) -> int:
    """How many of the modules see something else than float64; each is said."""
    OnGpu.device, OnGpu.launched, found = CudaDevice(), 0, 0
    for name in names:
        launches = calls()[name]
        module = import_module(f"tests.helpers.kernels.checks.{name}")
        emulated, module.Kernel = module.Kernel, OnGpu
        try:
            launches(module)
        except AssertionError as error:
            found += 1
            said = str(error).strip().splitlines() or ["not as float64"]
            print(f"{name}: {said[0]}", file=sys.stderr, flush=True)
        except Exception as error:  # of the GPU: none of the others can be asked
            raise RuntimeError(f"{name}: {error}") from error
        finally:
            module.Kernel = emulated
    return found


def main(names: Sequence[str] = ()) -> int:
    """Launch those that are named, or all; 3 where a result is not that of float64."""
    names = names or list(calls())
    found = wrong(names)
    print(f"launched {OnGpu.launched} kernels, {found} of {len(names)} were wrong")
    return DIFFERS if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
