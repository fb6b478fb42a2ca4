"""The certificate of weighted max-min fair rates, apart from the code that finds them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def unjustified_flows(
    capacity: FloatArray,  # (K,) bytes/s
    flow_ptr: IntArray,  # (F + 1,)
    flow_links: IntArray,
    rate: FloatArray,  # (F,) bytes/s
    *,
    weight: FloatArray | None = None,  # (F,) all 1 by default
    limit: FloatArray | None = None,  # (F,) bytes/s, inf by default
    priority: IntArray | None = None,  # (F,) all 0 by default
    tolerance: float = 1e-9,  # of the largest capacity or limit that holds a flow
) -> IntArray:
    """The flows that could get more: empty exactly where feasible rates are max-min fair.

    A flow is justified if its weight is 0 and it gets nothing, if it meets its limit, or if it has
    a *bottleneck*: a link that its own and the more urgent classes fill and on which no flow of its
    class gets more per weight (Bertsekas and Gallager, *Data Networks*, section 6.5.2).
    """
    flows = len(rate)
    weight = np.ones(flows) if weight is None else weight
    limit = np.full(flows, np.inf) if limit is None else limit
    priority = np.zeros(flows, dtype=np.int64) if priority is None else priority
    routes = [flow_links[flow_ptr[f] : flow_ptr[f + 1]] for f in range(flows)]
    on_link = [[f for f in range(flows) if link in routes[f]] for link in range(len(capacity))]

    def is_bottleneck(link: int, flow: int) -> bool:
        slack = tolerance * capacity[link]
        served = [f for f in on_link[link] if priority[f] <= priority[flow]]
        peers = [f for f in served if priority[f] == priority[flow] and weight[f] > 0.0]
        if rate[served].sum() < capacity[link] - slack:
            return False
        return all(rate[f] * weight[flow] <= (rate[flow] + slack) * weight[f] for f in peers)

    found = []
    for flow in range(flows):
        if weight[flow] == 0.0:
            justified = rate[flow] == 0.0
        else:
            justified = rate[flow] >= limit[flow] * (1.0 - tolerance) or any(
                is_bottleneck(int(link), flow) for link in routes[flow]
            )
        if not justified:
            found.append(flow)
    return np.array(found, dtype=np.int64)
