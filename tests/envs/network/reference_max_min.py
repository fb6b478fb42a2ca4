"""Max-min fair rates in exact rational arithmetic: slow, obvious, the oracle of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

INFINITE = float("inf")


def reference_max_min(
    capacity: Sequence[float],
    routes: Sequence[Sequence[int]],
    weight: Sequence[float] | None = None,
    limit: Sequence[float] | None = None,
    priority: Sequence[int] | None = None,
) -> list[float]:
    """Rates of the flows over `routes`, rounded once at the end; inf where nothing holds one back.

    See `exact_max_min`.
    """
    return [float(rate) for rate in exact_max_min(capacity, routes, weight, limit, priority)]


def exact_max_min(
    capacity: Sequence[float],
    routes: Sequence[Sequence[int]],
    weight: Sequence[float] | None = None,
    limit: Sequence[float] | None = None,
    priority: Sequence[int] | None = None,
) -> list[Fraction | float]:
    """Rates of the flows over `routes`, exact; inf where nothing holds one back.

    All growing flows of a class rise at one common level (rate over weight); at each round the
    lowest level at which a link is full or a limit is met is found by trying all of them.
    """
    flows = range(len(routes))
    weights = [Fraction(1 if weight is None else weight[f]) for f in flows]
    limits = [INFINITE if limit is None else limit[f] for f in flows]
    classes = [0 if priority is None else priority[f] for f in flows]
    rate: dict[int, Fraction | float] = {}
    for chosen in sorted(set(classes)):
        growing = {f for f in flows if classes[f] == chosen and weights[f] > 0}
        rate |= {f: Fraction(0) for f in flows if classes[f] == chosen and weights[f] == 0}
        while growing:
            levels = {}
            for link, room in enumerate(capacity):
                crowd = sum(weights[f] for f in growing if link in routes[f])
                if crowd and room < INFINITE:
                    taken = sum(r for f, r in rate.items() if link in routes[f])
                    levels["link", link] = (Fraction(room) - taken) / crowd
            for f in growing:
                if limits[f] < INFINITE:
                    levels["limit", f] = Fraction(limits[f]) / weights[f]
            if not levels:
                rate |= dict.fromkeys(growing, INFINITE)
                break
            lowest = min(levels.values())
            stopped = {
                f
                for f in growing
                if levels.get(("limit", f)) == lowest
                or any(levels.get(("link", link)) == lowest for link in routes[f])
            }
            rate |= {f: weights[f] * lowest for f in stopped}
            growing -= stopped
    return [rate[f] for f in flows]
