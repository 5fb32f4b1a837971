"""Offloaded runs on emulated GPUs."""


def offloaded(delay=-1, **sections):
    more = {"kind": "offload", "delay_after": delay, **sections.pop("agreement", {})}
    return {"agreement": more, **sections}
