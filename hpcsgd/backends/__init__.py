"""Backends: the arithmetic of one device, behind one protocol."""

from hpcsgd.backends.base import Backend
from hpcsgd.precision import Precision


def make_backend(precision: Precision) -> Backend:
    """Return the host's backend for `precision`: compiled kernels, or else NumPy.

    NumPy is used if no kernels are compiled. A precision that is not uniform is
    emulated with NumPy in any case.
    """
    from hpcsgd.backends import compiled_calls

    if not precision.is_uniform:
        from hpcsgd.backends.emulated import RoundedBackend

        return RoundedBackend(precision)
    if compiled_calls.available():
        from hpcsgd.backends.compiled import NativeBackend

        return NativeBackend(precision)
    from hpcsgd.backends.numpy_rows import HostBackend

    return HostBackend(precision)
