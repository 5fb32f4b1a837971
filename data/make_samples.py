"""Write small samples of every format: python data/make_samples.py DIR."""

import sys
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, save_npz, vstack

from hpcsgd.data.synthetic import Knobs, make_synthetic, write_synthetic

ROWS, COLS = 200, 12


def main(folder: Path) -> None:
    """A dense and a sparse classification set, and counts; a few kilobytes each."""
    folder.mkdir(parents=True, exist_ok=True)
    (X, y), *_ = make_synthetic("susy", ROWS, COLS)
    np.savez(folder / "dense.npz", X=X, y=y)
    np.save(folder / "dense.npy", X)
    np.savetxt(folder / "labels.txt", y, fmt="%g")
    np.savetxt(folder / "dense.csv", np.column_stack([y, X]), "%.7g", ",")
    blocks = list(make_synthetic("synth", ROWS, COLS, knobs=Knobs(density=0.2)))
    S, labels = csr_matrix(vstack([X for X, _ in blocks])), blocks[0][1]
    save_npz(folder / "sparse.npz", S)
    np.savetxt(folder / "sparse-labels.txt", labels, fmt="%g")
    (folder / "sparse.libsvm").write_text("".join(_lines(S, labels)))
    write_synthetic(folder / "counts.h5", "poisson-synth", ROWS, COLS)


def _lines(S, labels):
    for number, label in enumerate(labels):
        row = slice(S.indptr[number], S.indptr[number + 1])
        pairs = zip(S.indices[row] + 1, S.data[row], strict=True)
        yield " ".join([f"{label:g}", *(f"{c}:{v:.7g}" for c, v in pairs)]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which folder? python data/make_samples.py DIR")
    main(Path(sys.argv[1]))
