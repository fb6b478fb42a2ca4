"""From a simulator at its start to its end, under a compiled order of priority."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agents.cluster.ordered import attained_service, non_preemptive, shortest_first
from agents.cluster.ordered.start import room_of
from agents.cluster.ordered.waiting import FloatArray, IntArray, Waiting, nobody_waiting
from agents.cluster.policy import PlacementRule
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import WHOLE_GPU


def rule_code(simulator: ClusterSimulator, placement: PlacementRule) -> int | None:
    """The compiled form of a placement rule; None: there is none, or the trace has fractions."""
    whole = bool((simulator.trace.gpu_milli == WHOLE_GPU).all())
    code: int | None = getattr(placement, "code", None)
    return code if whole else None


def run_in_order(
    simulator: ClusterSimulator,
    placement: PlacementRule,
    key: FloatArray,
    seed: int,
    *,
    blocking: bool,
) -> bool:
    """`non_preemptive.run` to the end.

    Args:
        simulator: at its start.
        placement: where jobs go.
        key: (J,) priority of every job, the least first.
        seed: of rules that draw.
        blocking: whether a job that does not fit keeps those behind it waiting too.

    Returns:
        Whether it did; not, and nothing has happened, where the rule has no compiled form.
    """
    code = rule_code(simulator, placement)
    if code is None:
        return False
    waiting, room = _scratch(simulator), room_of(simulator.cluster.num_nodes, seed)
    _finish(
        simulator,
        lambda: non_preemptive.run(
            simulator.state,
            simulator.tables,
            simulator.overheads,
            waiting,
            key,
            code,
            room,
            blocking,
        ),
    )
    return True


def run_shortest_first(
    simulator: ClusterSimulator, placement: PlacementRule, seed: int, *, times_gpus: bool
) -> bool:
    """`shortest_first.run` to the end; see `run_in_order`."""
    code = rule_code(simulator, placement)
    if code is None:
        return False
    waiting, room = _scratch(simulator), room_of(simulator.cluster.num_nodes, seed)
    ranking = shortest_first.empty_ranking(len(simulator.trace))
    _finish(
        simulator,
        lambda: shortest_first.run(
            simulator.state,
            simulator.tables,
            simulator.overheads,
            waiting,
            ranking,
            code,
            room,
            times_gpus,
        ),
    )
    return True


def run_by_service(
    simulator: ClusterSimulator,
    placement: PlacementRule,
    limits: IntArray,
    seed: int,
    *,
    published: bool,
) -> bool:
    """`attained_service.run` to the end; see `run_in_order`.

    Args:
        simulator: at its start.
        placement: where jobs go.
        limits: GPU-seconds at which a job leaves a queue for the next, ascending.
        seed: of rules that draw.
        published: when and how far jobs are demoted as in Tiresias' simulator.
    """
    code = rule_code(simulator, placement)
    if code is None:
        return False
    waiting, room = _scratch(simulator), room_of(simulator.cluster.num_nodes, seed)
    queues = attained_service.empty_queues(len(simulator.trace))
    _finish(
        simulator,
        lambda: attained_service.run(
            simulator.state,
            simulator.tables,
            simulator.overheads,
            waiting,
            queues,
            limits,
            published,
            code,
            room,
        ),
    )
    return True


def _scratch(simulator: ClusterSimulator) -> Waiting:
    types = np.ascontiguousarray(simulator.state.jobs["types"])
    return nobody_waiting(simulator.trace, types)


def _finish(simulator: ClusterSimulator, run: Callable[[], bool]) -> None:
    simulator.lengthen_log()
    while not run():
        simulator.lengthen_log()
