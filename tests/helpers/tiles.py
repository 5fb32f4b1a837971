"""Tiles of weights on disk."""

from hpcsgd.agreements.more.infinity.store import TileLayout, TileStore

WORDS = {"weights": 1, "adam_m": 1, "adam_v": 1}


def layout(columns, height, replicas=1, dtype="<f4", widths=WORDS):
    return TileLayout(columns, dict(widths), dtype, height, replicas, 0, columns)


def made(folder, of, replica=0, **more):
    store = TileStore(folder, of, replica, **more)
    store.create({"exchanges": 0})
    return store
