"""Launch shapes of the kernels that replicas average with."""

from hpcsgd.backends.launch_steps import BLOCK, Launch


def average(held: int, more: int) -> Launch:
    """portion and become: a word of weights or intercept a thread."""
    return Launch((max(-(-(held + more) // BLOCK), 1),), BLOCK)
