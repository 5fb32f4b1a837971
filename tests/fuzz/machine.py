"""Hypothesis damages a text step by step, and shrinks what goes wrong."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.fuzz.compare import cuts, differences, differences_in_files
from tests.fuzz.mutate import LONGEST, WORDS, seeds

STEPS = 8
OPTIONS = settings(
    deadline=None,
    database=None,
    stateful_step_count=STEPS,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
places = st.floats(0, 1)


class Damage(RuleBasedStateMachine):
    """A text; after every change all ways to read it must agree."""

    @initialize(text=st.sampled_from(seeds()))
    def begin(self, text):
        self.text = text[:LONGEST]

    def _at(self, place):
        return int(place * len(self.text))

    @rule(place=places, byte=st.integers(0, 255))
    def flip(self, place, byte):
        at = self._at(place)
        self.text = self.text[:at] + bytes([byte]) + self.text[at + 1 :]

    @rule(place=places)
    def truncate(self, place):
        self.text = self.text[: self._at(place)]

    @rule(place=places, word=st.sampled_from(WORDS) | st.binary(max_size=4))
    def insert(self, place, word):
        at = self._at(place)
        self.text = self.text[:at] + word + self.text[at:]

    @rule(place=places, sign=st.sampled_from(["", "-", "+"]), point=places)
    def put_float(self, place, sign, point):
        self.insert(place, f" {sign}{point!r} ".encode())

    @rule(place=places, digits=st.text("0123456789", max_size=40), e=st.integers())
    def put_exponent(self, place, digits, e):
        self.insert(place, f"{digits}.{digits[::-1]}e{e}".encode())

    @rule(place=places, other=st.sampled_from(seeds()), start=places)
    def splice(self, place, other, start):
        self.text = self.text[: self._at(place)] + other[int(start * len(other)) :]

    @rule(first=places, last=places, times=st.sampled_from([2, 5, 300]))
    def repeat(self, first, last, times):
        at, end = sorted((self._at(first), self._at(last)))
        self.text = self.text[:at] + self.text[at:end] * times + self.text[end:]
        self.text = self.text[:LONGEST]

    @rule(ending=st.sampled_from([b"\r\n", b"\r", b"\n\n", b"", b"\x00\n"]))
    def change_line_ends(self, ending):
        self.text = self.text.replace(b"\n", ending)

    @rule(place=places)
    def cut_as_a_file(self, place):
        found = differences_in_files(self.text, cuts(self.text, place))
        assert not found, (found, self.text)

    @invariant()
    def all_agree(self):
        found = differences(self.text)
        assert not found, (found, self.text)
