"""Decisions of a scheduler, with what alternatives would have saved over the same futures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agents.cluster.backfilling import start
from agents.cluster.compiled.pairs import FloatRows, pairs_of
from agents.cluster.joint_choice import JointChoice
from agents.cluster.policy import Option
from agents.cluster.work_left import WorkLeft, futures_of
from envs.arrays import FloatArray
from envs.bounds import Count, Share, bounded
from envs.cluster.simulation.cluster import ClusterSimulator


class Decision(NamedTuple):
    """C candidates of one scheduler on N nodes of its own; the first is what the base does."""

    pair: FloatRows  # (C, PAIR_WIDTH)
    node: FloatRows  # (N, NODE_WIDTH)
    edge: FloatRows  # (C, N, EDGE_WIDTH)
    saved: FloatArray  # (F, C) seconds by which all jobs together finish earlier, in each future


@bounded
@dataclass(frozen=True, eq=False)
class PairedFutures:
    """Forks the simulator at some decisions: every candidate is played on by the base.

    All candidates of a decision meet the same futures, so that differences are theirs. After a
    decision the base's choice is carried out, or any candidate, so that states are met that the
    base would not lead to.

    Args:
        base: decides, and plays on.
        posterior: what futures are drawn from, without arrivals; None: the future as it will be.
        futures: drawn for each decision.
        share: of the decisions that are forked.
        strays: share of the decisions at which any candidate is carried out.
    """

    base: JointChoice
    posterior: WorkLeft | None
    futures: Count = 8
    share: Share = 0.15
    strays: Share = 0.05

    def decisions(
        self, simulator: ClusterSimulator, rng: np.random.Generator, first: int
    ) -> Iterator[Decision]:
        """Of a simulation from its start to its end; candidates are places of the `first` jobs."""
        base = self.base
        pairs = pairs_of(first, simulator.cluster.num_nodes)
        base.reset(simulator)
        if self.posterior is not None:
            self.posterior.reset(simulator)
        while not simulator.done and simulator.advance():
            scheduler = 0
            base.learn(simulator)
            while scheduler < base.schedulers:
                candidates = base.candidates(simulator, scheduler, pairs, first)
                chosen = 0
                if len(candidates) > 1:
                    if rng.random() < self.share:
                        mine = pairs.node[:, 0] > 0.0
                        count = len(candidates)
                        pair, node = pairs.pair[:count].copy(), pairs.node[mine]
                        edge = pairs.edge[:count, mine]
                        yield Decision(pair, node, edge, self._saved(simulator, candidates, rng))
                    if rng.random() < self.strays:
                        chosen = int(rng.integers(len(candidates)))
                option = candidates[chosen]
                if option is None:
                    scheduler += 1
                else:
                    start(simulator, *option)

    def _saved(
        self,
        simulator: ClusterSimulator,
        candidates: list[Option | None],
        rng: np.random.Generator,
    ) -> FloatArray:
        """(F, C) see `Decision`."""
        futures = futures_of(self.posterior, simulator, self.futures, rng)
        cost = np.empty((len(futures), len(candidates)))  # seconds at which jobs finish, added up
        for place in np.ndindex(cost.shape):
            twin, option = futures[place[0]].copy(), candidates[place[1]]
            if option is not None:
                start(twin, *option)
            self.base.play_on(twin, hold=option is None)
            cost[place] = twin.state.jobs["finish"].clip(0.0).sum()
        return cost[:, :1] - cost
