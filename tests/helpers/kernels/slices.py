"""What runs with slices are asked for: stages, and updates that keep states."""

STAGES = (1, 2, 3)
ADAM = {"update": {"kind": "adam"}, "rate": {"value": 0.01}}
MOMENTUM = {"update": {"kind": "momentum", "momentum": 0.8}}


def zero(stage, **sections):
    """Slices of a stage, and what else is asked."""
    asked = {"kind": "sharded", "stage": stage, **sections.pop("agreement", {})}
    return {"agreement": asked, **sections}
