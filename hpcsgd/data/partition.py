"""Who owns which range: one pure function."""


def split_range(n: int, parts: int, index: int) -> slice:
    """Part `index` of range(n) cut into `parts`; the first n % parts get one more."""
    size, extra = divmod(n, parts)
    start = index * size + min(index, extra)
    return slice(start, start + size + (index < extra))
