"""How each codec of CODECS is put to the test.

A new row of CODECS needs a row of ROWS: settings under which it can be seen at work,
those under which it loses nothing, and the twin that shows that the test can fail.
"""

from dataclasses import dataclass, field

from hpcsgd.agreements.codecs import CODECS


@dataclass(frozen=True)
class Row:
    """How a codec is put to the test."""

    rough: dict = field(default_factory=dict)  # [codec] settings that lose enough
    exact: dict | None = None  # settings that lose nothing; None: there are none
    good: dict = field(default_factory=dict)  # settings that converge best
    rate: float = 1.0  # of that run, times 1/L; what is kept goes with its square
    gap: float = 1e-3  # relative, of the objective it converges to, with those
    broken: dict | None = None  # settings of the twin; None: said elsewhere
    fair: dict = field(default_factory=dict)  # with those it is unbiased, if ever
    worse: float = 2.0  # the twin's gap is at least so many times that
    value: float | None = None  # the rate of other runs, if not that of the problem
    spreads: bool = False  # zeros among other words become something


ROWS = {
    "identity": Row(exact={}, gap=1e-10),
    "bf16": Row(good={"feedback": "on"}, gap=1e-7, broken={"feedback": "off"}),
    "fp16": Row(good={"feedback": "on"}, gap=1e-9, broken={"feedback": "off"}),
    "fp8": Row(gap=1e-4, broken={"feedback": "off"}),
    "topk": Row(
        rough={"share": 0.1},
        exact={"share": 1.0, "dense": "never"},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
        worse=100.0,
    ),
    "randomk": Row(
        rough={"share": 0.2},
        fair={"feedback": "off"},
        exact={"share": 1.0},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
    ),
    "dgc": Row(
        rough={"share": 0.1, "feedback": "auto"},
        exact={"share": 1.0, "dense": "never", "momentum": 0.0},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "masking": True},
        worse=100.0,
    ),
    "wangni": Row(
        rough={"budget": 0.5},
        exact={"share": 1.0, "dense": "never"},
        good={"budget": 0.2},
        rate=0.25,
    ),
    "threshold": Row(
        rough={"share": 0.1},
        exact={"share": 1.0, "dense": "never"},
        good={"share": 0.2},
        rate=0.25,
        broken={"share": 0.2, "feedback": "off"},
        worse=100.0,
    ),
    "qsgd": Row(rough={"bits": 4, "chunk": 16}, good={"bits": 4}),
    "sign": Row(spreads=True, broken={"feedback": "off"}, worse=100, rate=0.25),
    # Votes of shards that differ so much miss the optimum (docs, the card of vote).
    "vote": Row(rate=0.003, gap=0.5, value=0.01),
    "byte": Row(rough={"chunk": 16}, gap=2e-7, broken={"feedback": "off"}),
    "bytegrad": Row(gap=2e-7, broken={"feedback": "off"}),
    "alq": Row(
        rough={"bits": 3, "chunk": 16, "adapt": 1},
        good={"adapt": 1},
        broken={"adapt": 10**6},
    ),
    "amq": Row(
        spreads=True,
        rough={"bits": 3, "chunk": 16, "adapt": 1},
        good={"adapt": 1},
        broken={"adapt": 10**6},
    ),
    "powersgd": Row(
        spreads=True,
        rough={"start": 0, "min_rate": 0},
        exact={"start": 0, "min_rate": 0, "rank": 64},
        good={"start": 0, "min_rate": 0},
        gap=1e-3,
        broken={"start": 0, "min_rate": 0, "feedback": "off"},
        worse=10,
        rate=0.25,
    ),
    "nuqsgd": Row(rough={"bits": 3, "chunk": 16}, good={"bits": 4}),
    "accordion": Row(
        spreads=True,
        rough={"start": 0, "min_rate": 0, "accordion": {"interval": 1}},
        exact={
            "start": 0,
            "min_rate": 0,
            "accordion": {"low": "rank=64", "high": "rank=65"},
        },
        good={
            "dense": "never",
            "accordion": {
                "codec": "topk",
                "low": "share=0.5",
                "high": "share=0.2",
                "interval": 1,
            },
        },
        gap=1e-3,
        broken={
            "dense": "never",
            "feedback": "off",
            "accordion": {
                "codec": "topk",
                "low": "share=0.5",
                "high": "share=0.2",
                "interval": 1,
            },
        },
        worse=10,
        rate=0.25,
    ),
}
NAMES = list(CODECS)


def sections_of(settings):
    """[codec] and [accordion], as `settings` of the former may have the latter."""
    own = {key: value for key, value in settings.items() if key != "accordion"}
    return {"codec": own, "accordion": settings.get("accordion", {})}
