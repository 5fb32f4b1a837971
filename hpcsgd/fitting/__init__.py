"""`hpcsgd.fit`: a model from data in one call, with defaults that just work."""

from hpcsgd.fitting.fit import fit

__all__ = ["fit"]
