"""What is learnt: loss, residual and mean of each GLM in its score."""

from importlib import import_module

from hpcsgd.errors import ConfigError
from hpcsgd.families.base import Family

FAMILIES = {
    "gaussian": "hpcsgd.families.gaussian:Gaussian",
    "logistic": "hpcsgd.families.logistic:Logistic",
    "poisson": "hpcsgd.families.poisson:Poisson",
    "softmax": "hpcsgd.families.softmax:Softmax",
    "squared-hinge": "hpcsgd.families.squared_hinge:SquaredHinge",
    "huber": "hpcsgd.families.huber:Huber",
    "gamma": "hpcsgd.families.gamma:Gamma",
    "probit": "hpcsgd.families.probit:Probit",
}


def get_family(name: str) -> Family:
    """The family called `name`."""
    if name not in FAMILIES:
        raise ConfigError(
            f"[problem] unknown family: {name!r}; known: {list(FAMILIES)}"
        )
    module, attribute = FAMILIES[name].split(":")
    family: Family = getattr(import_module(module), attribute)()
    return family
