"""What one device can do, behind one protocol."""

from hpcsgd.backends.base import Backend
from hpcsgd.precision import Precision


def make_backend(precision: Precision) -> Backend:
    """The compiled kernels where there are any, else NumPy; emulation where need be."""
    from hpcsgd.backends import cpu

    if not precision.is_uniform:
        from hpcsgd.backends.rounded import RoundedBackend

        return RoundedBackend(precision)
    if cpu.available():
        from hpcsgd.backends.native import NativeBackend

        return NativeBackend(precision)
    from hpcsgd.backends.host import HostBackend

    return HostBackend(precision)
