"""Figures behind a fast network, and behind one of a tenth of its bandwidth."""

import argparse
import json
from collections.abc import Callable
from typing import Any

Figures = Callable[[str, int, int], dict[str, Any]]  # network, columns, repeats
NETWORKS = {"lan": "lan", "125 MB/s": "alpha=5e-5,bandwidth=1.25e8"}
COLUMNS, REPEATS = 400_000, 5


def on_both(figures: Figures) -> dict[str, Any]:
    """By the name of the network."""
    both = NETWORKS.items()
    return {name: figures(network, COLUMNS, REPEATS) for name, network in both}


def main(figures: Figures) -> None:
    """Those that the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--network", default="lan")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    print(json.dumps(figures(given.network, given.columns, given.repeats), indent=1))
