"""Placements simulated per second, beside the plain-Python reference in the same run.

    MESHWRIGHT_DATA=<folder> python tests/benchmarks/step_speed.py

Random placements on 4 devices, `single_port`, one thread, peak memory excluded: the median of
`ROUNDS` rounds in a fixed order, and with the 1F1B order worked out anew for every placement.

Then `fair` with all paths on the topologies of 16 devices, in fixed 1F1B orders: GPT-2's step
without micro-batches (1,010 operators) as a pipeline of 16 stages and placed at random, and a
random layered graph of 1,000 operators, far more parallel, placed at random; beside `single_port`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.random import default_rng

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/envs/step")]

from random_steps import topology_of  # noqa: E402
from reference_step import play_in_order  # noqa: E402

from envs.cost import RooflineCost  # noqa: E402
from envs.graphs.builder import GraphBuilder  # noqa: E402
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase  # noqa: E402
from envs.graphs.readers import read_graph_file  # noqa: E402
from envs.graphs.synthetic import log_uniform  # noqa: E402
from envs.graphs.zoo import zoo_graph  # noqa: E402
from envs.step.fair import FairSimulator  # noqa: E402
from envs.step.problem import StepProblem  # noqa: E402
from envs.step.step import Simulator, StepSimulator  # noqa: E402
from envs.units import GIGA, MEGA  # noqa: E402
from tests.envs.topologies import topology_named  # noqa: E402

GRAPHS = {
    "inception_v3 (PipeDream)": "graphs/pipedream/image_classification-inception_v3.txt",
    "resnet50 training (operators)": "graphs/dnn-partitioning/throughput-inputs/OperatorGraphs/"
    "resnet50_training.json.gz",
}
DEVICES, PLACEMENTS, ROUNDS = 4, 4_000, 15
SIXTEEN = ("h100_2x8", "fat_tree", "leaf_spine")
FAIR_PLACEMENTS, FAIR_ROUNDS = 8, 7


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


def layered(
    rng: np.random.Generator, operators: int, width: int = 4, density: float = 0.4
) -> OpGraph:
    """Layers of 1..`width` operators; each operator reads from one or more of the layer before.

    `density` is the probability of each further edge between neighbouring layers.
    """
    edges: set[tuple[int, int]] = set()
    previous: list[int] = []
    first = 0
    while first < operators:
        layer = list(range(first, min(operators, first + int(rng.integers(1, width + 1)))))
        for op in layer if previous else []:
            edges.add((int(rng.choice(previous)), op))
            edges.update((u, op) for u in previous if rng.random() < density)
        previous, first = layer, layer[-1] + 1
    return _with_costs(rng, operators, edges)


def _with_costs(rng: np.random.Generator, operators: int, edges: set[tuple[int, int]]) -> OpGraph:
    """Random costs on given edges: one output per operator, a parameter for half of them."""
    builder = GraphBuilder(name=f"layered_{operators}")
    work = log_uniform(rng, GIGA, 100 * GIGA, operators)
    size = log_uniform(rng, MEGA, 32 * MEGA, operators)
    reads = sorted(edges)
    producers = {u for u, _ in reads}
    read = np.zeros(operators)
    for u, v in reads:
        read[v] += size[u]
    tensors: dict[int, int] = {}
    for op in range(operators):
        builder.add_operator(
            f"op{op}",
            kind=Kind.MATMUL,
            flop=float(work[op]),
            bytes_read=float(read[op]),
            bytes_written=float(size[op]),
        )
        if op in producers:
            tensors[op] = builder.add_tensor(op, float(size[op]))
        if rng.random() < 0.5:
            builder.add_parameter(f"op{op}.weight", op, parameter=float(size[op]))
    for u, v in reads:
        builder.add_use(tensors[u], v)
    return builder.build()


def pipeline(problem: StepProblem) -> np.ndarray:
    """(N,) forward and other operators cut into D stages of equal compute, there and back."""
    graph, d = problem.graph, problem.topology.num_devices
    seconds = problem.op_seconds[:, 0]
    device = np.empty(graph.num_operators, dtype=np.int64)
    forward = graph.phase == Phase.FORWARD
    for part in (forward, ~forward):
        done = np.cumsum(seconds[part]) - seconds[part]
        stage = (done / max(seconds[part].sum(), 1e-30) * d).astype(np.int64)
        device[part] = stage if part is forward else d - 1 - stage
    grouped = np.flatnonzero(graph.colocation != NONE)
    first = np.unique(graph.colocation[grouped], return_index=True)[1]
    device[grouped] = device[grouped[first]][graph.colocation[grouped]]
    return device


def rate_of(simulator: Simulator, devices: np.ndarray, orders: list[np.ndarray]) -> float:
    """Steps per second of CPU time: the median of the rounds, the first of which compiles."""
    rates = []
    for _ in range(FAIR_ROUNDS + 1):
        start = time.process_time()
        for device, order in zip(devices, orders, strict=True):
            simulator.step_time(device, order)
        rates.append(len(devices) / (time.process_time() - start))
    return float(np.median(rates[1:]))


def fair_speed() -> None:
    """Print one row per topology, graph and placement."""
    gpt2 = zoo_graph("gpt2", batch=1, sequence=128, micro_batches=1, head="causal_lm",
                     optimizer="adam", dtype="float32")  # fmt: skip
    wide = layered(default_rng(0), 1_000, width=64, density=0.05)
    print(f"\n{'graph':14}{'topology':12}{'placement':12}{'transfers':>10}{'under way':>10}"
          f"{'fair/s':>10}{'single_port/s':>15}")  # fmt: skip
    for name in SIXTEEN:
        topology = topology_named(name)
        cases: list[tuple[OpGraph, str]] = [(gpt2, "pipeline"), (gpt2, "random"), (wide, "random")]
        for graph, placement in cases:
            problem = StepProblem.build(graph, topology, RooflineCost())
            rng = default_rng(0)
            shape = (FAIR_PLACEMENTS, graph.num_operators)
            devices = rng.integers(0, topology.num_devices, shape)
            if placement == "pipeline":
                devices = np.repeat(pipeline(problem)[None, :], FAIR_PLACEMENTS, axis=0)
            fair = FairSimulator(problem, multipath=True)
            orders = [fair.order(device) for device in devices]
            played = fair.run(devices[0], orders[0])
            under_way = (played.transfer_finish - played.transfer_start).sum() / played.step_time
            print(f"{graph.name:14}{name:12}{placement:12}{len(played.transfer_tensor):>10}"
                  f"{under_way:>10.1f}{rate_of(fair, devices, orders):>10,.0f}"
                  f"{rate_of(StepSimulator(problem), devices, orders):>15,.0f}")  # fmt: skip


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
        devices = default_rng(0).integers(0, DEVICES, (PLACEMENTS, n))
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
    fair_speed()


if __name__ == "__main__":
    main()
