"""The fluid network in exact rational arithmetic: slow, obvious, the oracle of the simulator."""

from __future__ import annotations

from fractions import Fraction

from reference_max_min import INFINITE, exact_max_min

from envs.network.fluid import FlowSet


def reference_completion(capacity: list[float], flows: FlowSet) -> list[float]:
    """Seconds from arrival to end of every flow, inf for one that never ends.

    The limit of a flow is a further link, which all its paths cross.
    """
    count = flows.num_flows
    routes: list[list[list[int]]] = []  # of each flow, of each path
    rooms = list(capacity)
    for f in range(count):
        private = []
        if flows.limit[f] < INFINITE:
            private = [len(rooms)]
            rooms.append(float(flows.limit[f]))
        routes.append([
            [*flows.path_links[flows.link_ptr[p] : flows.link_ptr[p + 1]].tolist(), *private]
            for p in range(flows.path_ptr[f], flows.path_ptr[f + 1])
        ])  # fmt: skip
    entry = [Fraction(a) + Fraction(b) for a, b in zip(flows.arrival, flows.latency, strict=True)]
    left = [Fraction(volume) for volume in flows.volume]
    end: dict[int, Fraction] = {}
    now = min(entry, default=Fraction(0))
    while True:
        end |= {f: now for f in range(count) if f not in end and entry[f] <= now and left[f] == 0}
        active = [f for f in range(count) if f not in end and entry[f] <= now]
        every = [(f, path) for f in active for path in routes[f]]
        rates = exact_max_min(
            rooms,
            [path for _, path in every],
            [float(flows.weight[f]) for f, _ in every],
            None,
            [int(flows.priority[f]) for f, _ in every],
        )
        rate = {f: Fraction(0) for f in active}
        for (f, _), share in zip(every, rates, strict=True):
            rate[f] += share
        steps = [left[f] / rate[f] for f in active if rate[f] > 0]
        steps += [entry[f] - now for f in range(count) if entry[f] > now]
        if not steps:
            break
        for f in active:
            left[f] -= rate[f] * min(steps)
        now += min(steps)
    return [float(end[f] - Fraction(flows.arrival[f])) if f in end else INFINITE
            for f in range(count)]  # fmt: skip
