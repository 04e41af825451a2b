"""Where to cut a chain of costs into parts whose largest is as small as it can be: for stages. Needs no torch."""

import functools
from collections.abc import Sequence


def balanced_cuts(costs: Sequence[float], num_parts: int) -> list[int]:
    """Where to cut `costs` into consecutive, non-empty parts so that the largest sum is as small as it can be."""

    @functools.cache
    def best(first: int, num: int) -> tuple[float, tuple[int, ...]]:
        """Largest sum and cuts of costs[first:] in `num` parts."""
        if num == 1:
            return sum(costs[first:]), ()
        ways = []
        for cut in range(first + 1, len(costs) - num + 2):
            largest, cuts = best(cut, num - 1)
            ways.append((max(sum(costs[first:cut]), largest), (cut, *cuts)))
        return min(ways)

    return list(best(0, num_parts)[1])
