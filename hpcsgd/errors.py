"""The errors a user can meet. Each message is one sentence that names the remedy."""


class HpcsgdError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1
    on_all_ranks = False  # True: every rank raises it, nobody is left waiting
    is_own = False  # True: no other rank knows of it, this one has to say it
    was_told = False  # True: ranks that act together have told each other of it


class ConfigError(HpcsgdError, ValueError):
    """A setting that cannot work: the message shows what would."""

    exit_code = 2


class DataError(HpcsgdError, ValueError):
    """Data that cannot be used as asked: the message names the place."""

    exit_code = 2


class MissingPackage(ConfigError, ImportError):
    """An optional package is needed now: the message has the pip command."""


class TransportError(HpcsgdError, RuntimeError):
    """Ranks cannot talk as asked."""


class DeviceLost(TransportError):
    """A GPU that does nothing more: what was on it is gone."""


class NumericsError(HpcsgdError, ArithmeticError):
    """Arithmetic left the range in which its result means anything."""


class ConvergenceWarning(UserWarning):
    """A model that is not at its optimum yet: the message says what to change."""
