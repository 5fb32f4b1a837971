"""Steps of slices: the bits of the host's rules, wherever slices begin."""

import re

import numpy as np
import pytest

from hpcsgd.backends.base import WordRange
from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import words
from hpcsgd.backends.cuda.weights import DeviceMemory
from hpcsgd.glm import Turn
from tests.helpers.kernels import nvrtc
from tests.helpers.kernels.checks.rules import RULES, agrees, sums_agree
from tests.helpers.kernels.emulator import (
    source_of,
)
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.nvrtc import options_for

COUNTS = (1, 255, 256, 257, 1000)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("count", COUNTS)
def test_steps_have_the_bits_of_the_host(name, count):
    agrees(name, count)


@pytest.mark.parametrize("count", COUNTS)
def test_words_are_added(count):
    sums_agree(count)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", kernels.RULES)
def test_steps_of_slices_are_rounded_as_hosts_round(name):
    """Each sum and product by itself, and nothing below 2^-126 is taken for zero."""
    build = kernels.build_of(name, "fp32", "90")
    given = options_for(build, "90")
    found = nvrtc.compile_text(source_of("rules"), name, given, 13).ptx
    body = found[found.index(f".entry {name}") :].partition("\n}")[0]
    used = set(re.findall(r"^\s*((?:[a-z]+\.)[a-z.]*f32)\b", body, re.MULTILINE))
    moves = {one for one in used if one.startswith(("ld.", "st.", "mov."))}
    whole = {"add.rn.f32", "mul.rn.f32", "div.rn.f32", "sqrt.rn.f32"}
    compares = {one for one in used if one.startswith("setp.")}  # whether l2 is 0
    assert used - moves - compares <= whole and "add.rn.f32" in used


def test_nothing_is_launched_for_nothing():
    device = FakeDevice()
    none = device.empty((0, 3), np.float32)
    kept = dict.fromkeys(RULES["adam"].state_names, none)
    part = WordRange(none, none, kept)
    DeviceMemory(device).step(RULES["adam"], 0.0, part, none, 1.0, Turn(0, 0.1))
    assert not device.launched and words(0).grid == (1,)
