"""Settings that a run would not read: whoever wrote one meant another run.

A row of `READ_BY` names settings and what has to be so for them to be read, written as
`section.key=value|value`; of several such words all have to hold. A setting that is in
no row is always read, or refused elsewhere in a sentence of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hpcsgd.agreement import AGREEMENTS
from hpcsgd.agreement.kinds import GRADIENTS
from hpcsgd.codecs import CODECS
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.methods import METHODS

Tables = Mapping[str, Mapping[str, Any]]
SPARSE = "agreement.codec=topk|randomk|threshold|wangni|dgc"
LEVELS = "agreement.codec=qsgd|nuqsgd|alq|amq"
DGC, POWERSGD = "agreement.codec=dgc", "agreement.codec=powersgd"
ENCODES = "agreement.kind=gradient|growing|qadam|scheduled"
BUCKETS = f"{ENCODES}|ticktock|sharded|offload"
AVERAGES = (
    "agreement.kind=average|auto|postlocal|hierarchical|fedavg|slowmo|async-average"
)
SLOWMO, SCHEDULED = "agreement.kind=slowmo", "agreement.kind=scheduled"
ANYBATCH, INFINITY = "agreement.kind=anybatch", "agreement.kind=infinity"
MOMENTA = "update.kind=momentum|nesterov|nesterov-classic"

READ_BY: dict[str, tuple[str, ...]] = {
    "update.momentum": (MOMENTA,),
    "update.beta1 update.beta2": ("update.kind=adam",),
    "update.epsilon": ("update.kind=adam|adagrad",),
    "update.bits": (f"{MOMENTA}|adam|adagrad",),
    "update.snapshot": ("update.kind=svrg",),
    "update.clip_at update.clip_over": ("update.clip=norm|value|percentile",),
    "coordinate.form coordinate.tol": ("update.kind=coordinate",),
    "rate.decay": ("rate.kind=inverse|inverse-sqrt",),
    "rate.milestones rate.factor": ("rate.kind=milestones",),
    "sampling.block sampling.window": ("sampling.mode=blocks",),
    "stop.tol": ("stop.on=gap|gradient|loss|validation",),
    "stop.patience": ("stop.on=loss|validation",),
    "polish.passes polish.tol polish.gap": ("polish.kind=auto|lbfgs|newton",),
    "average.share": ("average.kind=tail",),
    "mirror.kind mirror.radius mirror.p": (ANYBATCH,),
    "mirror.epsilon": (ANYBATCH, "mirror.kind=diagonal"),
    "accordion.codec accordion.low accordion.high": ("agreement.codec=accordion",),
    "accordion.eta accordion.interval": (
        "agreement.codec=accordion or agreement.kind=growing",
    ),
    "accordion.scale_rate": ("agreement.kind=growing",),
    "codec.feedback": (f"agreement.kind={'|'.join(GRADIENTS)}",),
    "codec.share codec.warm_up": (SPARSE, "codec.threshold=0.0", "codec.budget=0.0"),
    "codec.dense": ("agreement.codec=topk|threshold|wangni|dgc",),
    "codec.threshold": ("agreement.codec=threshold",),
    "codec.budget": ("agreement.codec=wangni",),
    "codec.momentum codec.nesterov codec.masking codec.clip": (DGC,),
    "codec.bits codec.norm": (LEVELS,),
    "codec.chunk": (f"{LEVELS}|byte",),
    "codec.adapt": ("agreement.codec=alq|amq",),
    "codec.rank codec.start codec.min_rate": (POWERSGD,),
    "agreement.momentum": (AVERAGES, f"{MOMENTA}|svrg"),
    "agreement.switch": ("agreement.kind=postlocal",),
    "agreement.groups agreement.periods": ("agreement.kind=hierarchical",),
    "agreement.fraction": ("agreement.kind=fedavg",),
    "agreement.base agreement.slow_rate agreement.slow_momentum": (SLOWMO,),
    "agreement.slow_period agreement.slow_sharded": (SLOWMO,),
    "agreement.peers": ("agreement.kind=decentralized",),
    "agreement.resync": ("agreement.kind=decentralized-low",),
    "agreement.delay": ("agreement.kind=async-average",),
    "agreement.warmup_steps": ("agreement.kind=qadam",),
    "agreement.rounds agreement.replay agreement.graph": (ANYBATCH,),
    "agreement.mixing agreement.weighted": (ANYBATCH,),
    "agreement.deadline": (ANYBATCH, "agreement.rounds=clock"),
    "agreement.partition agreement.credit agreement.order": (SCHEDULED,),
    "agreement.tune_schedule": (SCHEDULED,),
    "agreement.mode": ("agreement.kind=ticktock",),
    "agreement.stage": ("agreement.kind=sharded",),
    "agreement.delay_after": ("agreement.kind=offload",),
    "agreement.tile agreement.store": (INFINITY,),
    "agreement.sync agreement.direct": (INFINITY,),
    "agreement.bucket": (BUCKETS,),  # last: others tell more of a misunderstanding
}
NEEDS = {name: needs for names, needs in READ_BY.items() for name in names.split()}
USUAL = RunConfig()
NOTHING = {"update.momentum": 0.0}  # what those who do not read it have


def check_read(config: RunConfig, given: Tables | None = None) -> None:
    """Refuse the first setting that somebody gave and nobody would read.

    `given`: the tables of somebody, where others have laid theirs below.
    """
    for name, sentence in unread(config).items():
        section, key = name.split(".")
        if given is None or key in given.get(section, {}):
            raise ConfigError(sentence)


def unread(config: RunConfig) -> dict[str, str]:
    """section.key -> why it is not read here, for all that were given a value."""
    found = {}
    for name in NEEDS:
        needs = list(_missing(name, config)) if _is_given(name, config) else []
        if needs:
            found[name] = _sentence(name, needs[0], config)
    return found | _turned(config)


def is_read(name: str, config: RunConfig) -> bool:
    """Whether a run with `config` reads this setting, whatever its value."""
    return not any(_missing(name, config))


def value_of(name: str, config: RunConfig) -> Any:
    """That of section.key."""
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def without_unread(tables: Tables, shared: Tables) -> dict[str, dict[str, Any]]:
    """`tables` less what they have of `shared` and would not read.

    What several runs share is for those of them that read it.
    """
    left = {section: dict(table) for section, table in tables.items()}
    try:
        names = list(unread(RunConfig.parse(tables)))
    except ConfigError:
        return left  # whoever parses them says why
    for name in names:
        section, key = name.split(".")
        ours = left.get(section, {})
        if key in ours and ours[key] == shared.get(section, {}).get(key, ours):
            del ours[key]
    return left


def _is_given(name: str, config: RunConfig) -> bool:
    """Whether it has a value that neither the default nor the method would give it."""
    value = value_of(name, config)
    method = METHODS.get(config.agreement.method)
    usual = {} if method is None else {**method.defaults, **method.fixed}
    true = (value_of(name, USUAL), *(t[name] for t in (usual, NOTHING) if name in t))
    return value not in true


def _missing(name: str, config: RunConfig) -> Iterator[str]:
    """What would have to be so for it to be read, and is not."""
    for need in NEEDS.get(name, ()):
        if not any(_holds(one, config) for one in need.split(" or ")):
            yield need.split(" or ")[0]


def _holds(need: str, config: RunConfig) -> bool:
    of, _, values = need.partition("=")
    found = _in_force(of, config)
    return _is_yours(of, config) or bool(found & set(values.split("|")))


def _in_force(of: str, config: RunConfig) -> set[str]:
    """Its value; what wraps another is that, too."""
    found = {str(value_of(of, config))}
    if of == "agreement.kind" and found == {"slowmo"}:
        found.add(config.agreement.base)
    if of == "agreement.codec" and found == {"accordion"}:
        found.add(config.accordion.codec)
    return found


def _is_yours(of: str, config: RunConfig) -> bool:
    """Whether it was registered from outside: such may read anything."""
    kind = AGREEMENTS.get(config.agreement.kind)
    if of == "agreement.kind" and kind is not None:
        return not kind.__module__.startswith("hpcsgd.")
    homes = [CODECS.get(name, "") for name in _in_force("agreement.codec", config)]
    return of == "agreement.codec" and not all(h.startswith("hpcsgd.") for h in homes)


def _sentence(name: str, need: str, config: RunConfig) -> str:
    (section, key), (of, _, values) = name.split("."), need.partition("=")
    place, other = of.split(".")
    *most, last = map(repr, values.split("|"))
    one_of = f"{', '.join(most)} or {last}" if most else last
    return (
        f"[{section}] {key} = {value_of(name, config)!r} is for [{place}] {other} ="
        f" {one_of}, and {other} = {value_of(of, config)!r} does not read it; use"
        f" {_remedy(name, of, values.split('|')[0], config)}, or leave {name} out"
    )


def _remedy(name: str, of: str, value: str, config: RunConfig) -> str:
    """The method of that kind, and best one that has this very value."""
    if of == "update.kind":
        return f"--update {value}"
    fits = [n for n, row in METHODS.items() if str(row.fixed.get(of)) == value]
    given = value_of(name, config)
    best = [n for n in fits if METHODS[n].fixed.get(name) == given]
    return f"--method {(best + fits)[0]}" if fits else f"--set {of}={value}"


def _turned(config: RunConfig) -> dict[str, str]:
    """Settings of [codec] that accordion has others for in both of its modes."""
    if config.agreement.codec != "accordion" or config.accordion.codec not in CODECS:
        return {}
    low, high = config.accordion.ways(config.codec)
    found = {}
    for key, value in vars(config.codec).items():
        if value not in (getattr(low, key), getattr(high, key)):
            found[f"codec.{key}"] = (
                f"[codec] {key} = {value!r} is what accordion turns, between"
                f" {getattr(low, key)!r} and {getattr(high, key)!r}; set accordion.low"
                " and accordion.high, and leave it out"
            )
    return {name: said for name, said in found.items() if _is_given(name, config)}
