"""Placements simulated per second, beside the plain-Python reference in the same run.

    MESHWRIGHT_DATA=<folder> python tests/benchmarks/step_speed.py

Random placements on 4 devices, `single_port`, one thread, peak memory excluded: the median of
`ROUNDS` rounds in a fixed order, and with the 1F1B order worked out anew for every placement.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/envs/simulation")]

from random_steps import topology_of  # noqa: E402
from reference_step import play_in_order  # noqa: E402

from envs.graphs.readers import read_graph_file  # noqa: E402
from envs.simulation.problem import StepProblem  # noqa: E402
from envs.simulation.step import StepSimulator  # noqa: E402

GRAPHS = {
    "inception_v3 (PipeDream)": "graphs/pipedream/image_classification-inception_v3.txt",
    "resnet50 training (operators)": "graphs/dnn-partitioning/throughput-inputs/OperatorGraphs/"
    "resnet50_training.json.gz",
}
DEVICES, PLACEMENTS, ROUNDS = 4, 4_000, 15


def four_devices(path: Path) -> StepProblem:
    """The graph's own times on four equal devices of one server, each with its port pair."""
    graph = read_graph_file(path).graph
    topology = topology_of([0] * DEVICES, nic_per_server=False)
    seconds = graph.profile_seconds[:, -1]
    seconds = np.where(np.isfinite(seconds), seconds, graph.profile_seconds[:, 0])
    moves = graph.link_seconds.max(axis=1) if graph.link_classes else graph.tensor_bytes / 3.125e9
    return StepProblem(
        graph=graph,
        topology=topology,
        op_seconds=np.repeat(seconds[:, None], DEVICES, axis=1),
        transfer_seconds=np.stack([np.zeros_like(moves), moves, moves], axis=1),
        capacity=topology.memory_bytes,
    )


def main() -> None:
    """Print one row per graph."""
    folder = os.environ.get("MESHWRIGHT_DATA")
    if not folder:
        sys.exit("MESHWRIGHT_DATA is not set: it must name the folder of published graphs")
    print(
        f"{'graph':32}{'operators':>10}{'fixed order/s':>15}{'1F1B order/s':>14}{'reference/s':>13}"
    )
    for name, path in GRAPHS.items():
        problem = four_devices(Path(folder) / path)
        n = problem.graph.num_operators
        simulator = StepSimulator(problem)
        devices = np.random.default_rng(0).integers(0, DEVICES, (PLACEMENTS, n))
        order = np.arange(n)
        rates: dict[str, list[float]] = {"fixed": [], "rule": []}
        for _ in range(ROUNDS + 1):  # the first compiles
            for label, chosen in (("fixed", order), ("rule", None)):
                start = time.perf_counter()
                simulator.step_times(devices, chosen)
                rates[label].append(PLACEMENTS / (time.perf_counter() - start))
        start = time.perf_counter()
        slow = play_in_order(problem, devices[0], order).step_time
        reference = 1 / (time.perf_counter() - start)
        fast = simulator.step_time(devices[0], order)
        assert abs(fast - slow) <= 1e-12 * slow, "the simulators disagree"
        fixed, rule = (float(np.median(rates[label][1:])) for label in ("fixed", "rule"))
        print(f"{name:32}{n:>10}{fixed:>15,.0f}{rule:>14,.0f}{reference:>13.1f}")


if __name__ == "__main__":
    main()
