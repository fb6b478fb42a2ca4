"""A given division of a captured graph into stages, replicas and shards, simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agents.hybrid.sharding import sharding_of
from agents.hybrid.uniform import ORDERS
from envs.arrays import FloatArray
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.hybrid.layers import hybrid_problem, layers_of
from envs.hybrid.links import Servers
from envs.hybrid.plan import BUCKET_BYTES, HybridPlan, Shard, Stage, ordered, peak_memory
from envs.hybrid.problem import HybridProblem
from envs.hybrid.simulation import simulate
from envs.hybrid.transformer_row import WHOLE
from envs.step.problem import CostModel, StepProblem

MOST_LAYERS = 64


def captured_run(
    graph: OpGraph,
    servers: Servers,
    cost: CostModel,
    degrees: tuple[int, int, int],
    schedule: str,
    *,
    recompute: bool,
    overlap: bool,
) -> tuple[HybridProblem, HybridPlan]:
    """The layers of a graph, and a plan of `degrees`: tensor, pipeline, data.

    Every replica computes all micro-batches of the graph. Layers are divided into stages of about
    the same time. A stage that computes again keeps its input alone.

    Raises:
        InputError: the graph has fewer layers than stages, or no forward pass.
    """
    tensor, pipeline, data = degrees
    step = StepProblem.build(graph, servers.topology(tensor * pipeline * data), cost)
    layer = layers_of(step, MOST_LAYERS)
    count = int(layer.max()) + 1
    if count < pipeline:
        raise InputError(f"{pipeline} stages of {count} layers", field="pipeline")
    sharding = sharding_of(graph, layer, count, (1, tensor) if tensor > 1 else (1,))
    problem = hybrid_problem(step, layer, graph.num_micro_batches, sharding)
    work = problem.forward[:, 0] + problem.input_gradient[:, 0] + problem.weight_gradient[:, 0]
    group, first, stages = tensor * data, 0, []
    for rank, end in enumerate(_ends(work, pipeline)):
        devices = tuple(range(rank * group, (rank + 1) * group))
        stages.append(Stage(first, end, devices, tensor, recompute=recompute))
        first = end
    plan = ordered(stages, problem.micro_batches, ORDERS[schedule])
    return _for_each(problem, data, servers, overlap=overlap), plan


def _ends(work: FloatArray, stages: int) -> list[int]:
    """Where stages end: behind equal shares of the work, none empty."""
    share = np.cumsum(work) / work.sum() * stages
    found: list[int] = []
    for stage in range(1, stages):
        end = int(np.searchsorted(share, stage)) + 1
        least, most = (found[-1] if found else 0) + 1, len(work) - (stages - stage)
        found.append(min(max(end, least), most))
    return [*found, len(work)]


def _for_each(
    problem: HybridProblem, data: int, servers: Servers, *, overlap: bool
) -> HybridProblem:
    """The same, where a micro-batch is that of one replica."""
    shards = {
        degree: Shard(
            of.compute, of.state, of.saved, of.forward_sent * data, of.backward_sent * data,
            of.forward_messages, of.backward_messages,
        )
        for degree, of in problem.sharding.items()
    }  # fmt: skip
    return replace(
        problem,
        forward=problem.forward * data,
        input_gradient=problem.input_gradient * data,
        weight_gradient=problem.weight_gradient * data,
        cut_bytes=problem.cut_bytes * data,
        saved_bytes=problem.saved_bytes * data,
        sharding=shards,
        servers=servers,
        bucket_bytes=BUCKET_BYTES if overlap else WHOLE,
    )


def captured_step(problem: HybridProblem, plan: HybridPlan) -> dict[str, object]:
    """What a step of it is like."""
    peak = float(peak_memory(problem, plan).max())
    return {
        "layers": problem.num_layers,
        "micro_batches": problem.micro_batches,
        "step_time_s": simulate(problem, plan).step_time,
        "peak_memory_bytes": peak,
        "fits": peak <= float(problem.capacity.max()),
        "stages": [
            {"layers": stage.end - stage.first, "first_layer": problem.layer_names[stage.first]}
            for stage in plan.stages
        ],
    }
