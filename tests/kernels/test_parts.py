"""Sums of bf16 bits of several ranks, bit for bit as the host has them."""

from tests.helpers.kernels.checks.parts import check
from tests.helpers.kernels.emulator import source_of


def test_sums_of_parts():
    check(source_of("parts"))
