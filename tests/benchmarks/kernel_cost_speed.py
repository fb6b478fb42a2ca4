"""Milliseconds in which the shipped cost prices 20,000 different operators, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/kernel_cost_speed.py

Random operators of all kinds in float32 and float16, no two alike, on one V100: from the graph to
seconds, and the network alone. Processor time of this process; medians of 30.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from envs.graphs.builder import GraphBuilder
from envs.graphs.kernels import kernels_of
from envs.graphs.op_graph import Kind, OpGraph
from models.step.kernel_cost import LearnedCost, read_cost
from models.step.kernel_features import Inputs
from tests.envs.topologies import topology_named

OPERATORS, ROUNDS, WARM_UP, LIMIT_MS = 20_000, 30, 3, 50.0


def different_operators() -> OpGraph:
    """Operators that depend on nothing."""
    rng, builder = np.random.default_rng(0), GraphBuilder(name="different")
    for number in range(OPERATORS):
        builder.add_operator(
            str(number),
            kind=Kind(int(rng.integers(len(Kind)))),
            flop=10.0 ** rng.uniform(6, 12),
            bytes_read=10.0 ** rng.uniform(4, 8),
            bytes_written=10.0 ** rng.uniform(4, 8),
            dtype=("float32", "float16")[number % 2],
        )
    return builder.build()


def milliseconds(call: Callable[[], object]) -> float:
    """Median processor time of a call."""
    spent = []
    for _ in range(WARM_UP + ROUNDS):
        start = time.process_time()
        call()
        spent.append(time.process_time() - start)
    return 1e3 * statistics.median(spent[WARM_UP:])


def main() -> None:
    """Print times."""
    graph, topology, cost = different_operators(), topology_named("single_v100"), LearnedCost()
    inputs = Inputs(kernels_of(graph), topology.devices[0].spec)
    shares, _ = read_cost(cost.folder)
    whole_ms = milliseconds(lambda: cost.operator_seconds(graph, topology))
    print(f"{OPERATORS:,} operators{whole_ms:8.1f} ms")
    print(f"the network alone{milliseconds(lambda: shares(inputs)):8.1f} ms")
    if whole_ms > LIMIT_MS:
        raise SystemExit(f"to be at most {LIMIT_MS:g} ms")


if __name__ == "__main__":
    main()
