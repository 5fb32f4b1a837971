"""Readers for the tests of verify."""

from hpcsgd.data.readers import MemoryReader


def reader_of(drawn, data=True):
    extra = (drawn.weights, drawn.offset) if data else ()
    return MemoryReader(drawn.X, drawn.y, *extra)
