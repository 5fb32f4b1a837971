"""Inputs of the cost model, for tests that change one of them."""

from dataclasses import replace


def with_values(job, **values):
    """The inputs with other values, each in the group that has its name."""
    groups = {"replica": job.replica, "value_bytes": job.value_bytes}
    for name, group in groups.items():
        own = {key: values.pop(key) for key in vars(group) if key in values}
        groups[name] = replace(group, **own)
    return replace(job, **groups, **values)
