"""What stages ask for, by a count of every request; and the throughput of stages in a row."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.papers.bgl.pipeline import (
    GeneratedGraph,
    Machines,
    demand,
    equal_shares,
    hits,
    sample,
)

MACHINES = Machines(
    gpus=2, train_s=3.0, store_cores=5, worker_cores=4, pcie_shares=4, pcie=8.0, nic=16.0,
    feature_bytes=32, edge_s=0.5, request_s=2.0, row_s=0.25, convert_s=0.125, lookup_s=0.0625,
    update_s={"fifo": 1.0, "lru": 1.0},
)  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo", "lru"])
def test_demands_are_counts_of_requests(policy: str) -> None:
    graph = GeneratedGraph(60, 200, 2.5, 1, 1.0, 1).draw(np.random.default_rng(0))
    part = np.arange(60, dtype=np.int32) % 3
    requests = sample(graph, np.arange(20, dtype=np.int32), 4, [3, 2, 2], 0)  # five batches
    hit = hits(policy, graph, requests.node, 30)
    found = demand(MACHINES, requests, policy, hit, part)
    sampling = gathering = sent = edges = missed = inner = crossed = between = 0.0
    for first in range(0, 5, 2):  # rounds of two batches
        work, rows, out = np.zeros((3, 3))
        for at in range(requests.offset[first], requests.offset[min(first + 2, 5)]):
            v, u = requests.node[at], requests.parent[at]
            degree, hop = graph.degree[v], requests.hop[at]
            own = min(degree, [3, 2, 2, 0][hop])
            work[part[v]] += 0.5 * own
            out[part[v]] += 16 * own
            edges += own
            if not hit[at]:
                rows[part[v]] += 0.25
                out[part[v]] += 32
                missed += 1
            if 0 < hop < 3:
                inner += 1
                if part[u] != part[v]:
                    crossed += 1
                    work[part[v]] += 2.0
                    out[part[v]] += 8 * (own + 1)
                    between += 8 * (own + 1)
        sampling, gathering, sent = sampling + work.max(), gathering + rows.max(), sent + out.max()
    network = max(sent, 16 * edges + 32 * missed) / 16.0
    looked_up = len(hit)
    updates = missed if policy == "fifo" else looked_up
    divided = [sampling, gathering, 0, 0.125 * edges, 8 * edges, looked_up / 16, 16 * missed, 0]
    serial = [0, 0, network, 0, 0, updates, 0, 1.5 * edges]
    assert 5 * found.divided == pytest.approx(np.array(divided, dtype=float))
    assert 5 * found.serial == pytest.approx(np.array(serial, dtype=float))
    assert found.figures == pytest.approx(
        {
            "hit_ratio": hit.mean(),
            "crossing": crossed / inner,
            "crossing_bytes": between / 5,
            "missed_bytes": 32 * missed / 5,
        }
    )
    assert equal_shares(MACHINES).tolist() == [3, 2, 1, 2, 2, 2, 2, 1]
    # Stages in a row with room for one batch between them: batch b leaves stage s when it is done
    # there and the batch before it has left the next one.
    seconds = found.seconds(equal_shares(MACHINES))
    begun = np.zeros(9)
    ends = []
    for _ in range(50):
        ready = begun[0]
        for s in range(8):
            ready = max(ready, begun[s]) + seconds[s]
            ready = max(ready, begun[s + 1])
            begun[s] = ready
        ends.append(ready)
    assert np.diff(ends)[-20:] == pytest.approx(np.full(20, seconds.max()))
