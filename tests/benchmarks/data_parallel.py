"""Steps of BERT-base on four servers with two links each, by all-reduce algorithm.

    python tests/benchmarks/data_parallel.py

A replica of `conf/graph/bert_base.yaml` (32 samples in 4 micro-batches, roofline times) on every
device. *Overlap* has PyTorch's buckets; *without* it one bucket of everything, which starts when
the backward pass has ended. *By bucket* lets updates run in the order of their buckets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from envs.cost import RooflineCost  # noqa: E402
from envs.graphs.op_graph import OpGraph  # noqa: E402
from envs.hardware.topology import Topology  # noqa: E402
from envs.network.collectives.hierarchical import BlueConnect, HierarchicalRing  # noqa: E402
from envs.network.collectives.recursive import HalvingDoubling, RecursiveDoubling  # noqa: E402
from envs.network.collectives.ring import RingAllReduce  # noqa: E402
from envs.network.collectives.schedule import Collective  # noqa: E402
from envs.network.collectives.trees import DoubleTree, ParameterServer  # noqa: E402
from envs.step.data_parallel import DataParallelSimulator  # noqa: E402
from envs.step.order import OneFOneB  # noqa: E402
from envs.step.problem import StepProblem  # noqa: E402
from envs.step.replicated_step import (  # noqa: E402
    ONE_BUCKET,
    PYTORCH,
    gradient_buckets,
    updates_by_bucket,
    updates_last,
)
from envs.units import MILLISECOND  # noqa: E402
from experiments.run.targets import build  # noqa: E402

DEVICES = (1, 4)  # in a server


def cluster(devices: int) -> Topology:
    """`planes_4x1` with `devices` V100 in each server."""
    section = OmegaConf.load(ROOT / "conf/topology/planes_4x1.yaml")
    section.name, section.server.count = f"planes_4x{devices}", devices
    topology: Topology = build(OmegaConf.to_container(section))
    return topology


def algorithms(topology: Topology) -> list[tuple[Collective, tuple[int, ...]]]:
    """All-reduces of a replica on every device, with the devices of their parameter servers."""
    server = tuple(topology.server.tolist())
    first = tuple(np.unique(topology.server, return_index=True)[1].tolist())
    found: list[tuple[Collective, tuple[int, ...]]] = [
        (RingAllReduce(), ()),
        (HalvingDoubling(), ()),
        (RecursiveDoubling(), ()),
        (DoubleTree(8), ()),
        (ParameterServer(1), first[:1]),
        (ParameterServer(len(first)), first),
    ]
    if len(first) < len(server):
        found += [(HierarchicalRing(server), ()), (BlueConnect(server), ())]
    return found


def main() -> None:
    """Print the table."""
    section = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/graph/bert_base.yaml"))
    graph: OpGraph = build(section).load().graph
    for count in DEVICES:
        topology = cluster(count)
        problem = StepProblem.build(graph, topology, RooflineCost())
        replicas = np.arange(topology.num_devices)[:, None]
        devices = np.repeat(replicas, graph.num_operators, axis=1)
        order = OneFOneB()(graph, devices[0])
        buckets = gradient_buckets(graph, devices[0], updates_last(graph, order), PYTORCH)
        print(f"{topology.name}: {len(replicas)} replicas, {len(buckets)} buckets")
        for collective, servers in algorithms(topology):
            overlapping = DataParallelSimulator(problem, collective, PYTORCH, servers)
            plain = overlapping.run(devices, order)
            sooner = overlapping.run(devices, updates_by_bucket(graph, order, buckets))
            without = DataParallelSimulator(problem, collective, ONE_BUCKET, servers)
            late = without.run(devices, order)
            alone, reducing = plain.computing_time, plain.synchronisation_seconds
            print(
                f"  {collective.name:22} all-reduces {reducing / MILLISECOND:7.1f} ms"
                f"  step {alone / MILLISECOND:6.1f} ms without them"
                f", {plain.step_time / MILLISECOND:7.1f} overlapping"
                f" ({plain.exposed_share:.1%} exposed)"
                f", {sooner.step_time / MILLISECOND:7.1f} by bucket"
                f" ({sooner.exposed_share:.1%})"
                f", {late.step_time / MILLISECOND:7.1f} without overlap"
                f" ({late.exposed_share:.1%})"
            )


if __name__ == "__main__":
    main()
