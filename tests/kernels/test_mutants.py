"""Faults that are planted in kernels have a place there."""

import pytest

from tests.helpers.kernels.mutants import modules, planted_in


def short(module):
    """Return the last part of the name of a module."""
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", modules(), ids=short)
def test_every_fault_has_one_place(module):
    """Without one it would seem to be found: whatever fails counts as seen."""
    for mutant in module.MUTANTS:
        assert planted_in(module, mutant.name)
