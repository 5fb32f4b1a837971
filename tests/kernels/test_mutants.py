"""Faults that are planted in kernels have a place there."""

import pytest

from tests.kernels.mutants import modules, planted_in


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__[20:])
def test_every_fault_has_one_place(module):
    """Without one it would seem to be found: whatever fails counts as seen."""
    for mutant in module.MUTANTS:
        assert planted_in(module, mutant.name)
