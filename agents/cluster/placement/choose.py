"""The placement rules behind one compiled function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from agents.cluster.placement.best_fit import choose_best_fit
from agents.cluster.placement.codes import (
    BEST_FIT,
    COUNT,
    FIRST_FIT,
    HELIOS_CONSOLIDATE,
    LEAST_INTERFERENCE,
    RANDOM,
    SPREAD,
    YARN,
)
from agents.cluster.placement.count import choose_count
from agents.cluster.placement.first_fit import choose_first_fit
from agents.cluster.placement.helios_consolidate import choose_helios_consolidate
from agents.cluster.placement.least_interference import choose_least_interference
from agents.cluster.placement.random import choose_random
from agents.cluster.placement.spread import choose_spread
from agents.cluster.placement.yarn import choose_yarn
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_state import ClusterState

if TYPE_CHECKING:
    from agents.cluster.ordered.start import Room


@njit(cache=True, forceinline=True)
def choose(rule: int, state: ClusterState, tables: RateTables, job: int, room: Room) -> int:
    """The shares of a whole-GPU job, into `room`; how many, 0 where it does not fit.

    Args:
        rule: one of `codes`.
        state: of the cluster.
        tables: rates.
        job: pending.
        room: `nodes` and `gpus` of the shares, and the `random` state of rules that draw.

    Raises:
        ValueError: no such rule.
    """
    nodes, gpus, random = room.nodes, room.gpus, room.random
    record = state.jobs[job]
    count: int = 0
    if rule == COUNT:
        count = choose_count(state.nodes, record, random, nodes, gpus)
    elif rule == YARN:
        count = choose_yarn(state.nodes, record, random, nodes, gpus)
    elif rule == HELIOS_CONSOLIDATE:
        count = choose_helios_consolidate(state.nodes, record, random, nodes, gpus)
    elif rule == FIRST_FIT:
        count = choose_first_fit(state.nodes, record, random, nodes, gpus)
    elif rule == BEST_FIT:
        count = choose_best_fit(state.nodes, record, random, nodes, gpus)
    elif rule == RANDOM:
        count = choose_random(state.nodes, record, random, nodes, gpus)
    elif rule == SPREAD:
        count = choose_spread(state.nodes, record, random, nodes, gpus)
    elif rule == LEAST_INTERFERENCE:
        count = choose_least_interference(state, tables, job, nodes, gpus)
    else:
        raise ValueError("no such placement rule")
    return count
