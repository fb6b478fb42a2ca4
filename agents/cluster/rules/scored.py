"""A placement rule that is one score of the nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from agents.cluster.policy import PlacementRule, Share
from agents.cluster.rules.eligible import emptiest_first, fits_one_node, refuse_fraction, rooms
from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError


class ScoredNodes(PlacementRule):
    """A gang goes to the node with the least score that holds it, the lowest of equals.

    One that no node could hold, were it empty, takes what is free on the fewest nodes: those with
    the most room first, of equals that with the least score. A subclass has a `name` and a `score`.
    It is asked in Python at every start, so that its policy is not compiled as a whole.
    """

    @abstractmethod
    def score(self, simulator: ClusterSimulator, job: int) -> FloatArray | IntArray:
        """(N,) of every node for a pending job.

        Args:
            simulator: `state.nodes` has the nodes' columns (`cluster_state.NODE`), `state.jobs`
                those of jobs (`cluster_state.JOB`).
            job: its number.
        """

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """See `PlacementRule.place`.

        Raises:
            InputError: the job asks for a fraction of a GPU, or a score is no finite number.
        """
        record, nodes = np.asarray(simulator.state.jobs)[job], simulator.state.nodes
        refuse_fraction(simulator, job)
        need = int(record["gpus"])
        room = rooms(nodes, record)
        score = np.asarray(self.score(simulator, job))
        if score.shape != room.shape or not np.isfinite(score.astype(np.float64)).all():
            problem = f"scores {score.dtype} of shape {score.shape}, not a finite number a node"
            raise InputError(problem, file=f"placement rule {self.name}")
        enough = np.flatnonzero(room >= need)
        if len(enough):
            return [(int(enough[np.argmin(score[enough])]), need)]
        if fits_one_node(nodes, record) or room.clip(0).sum() < need:
            return None
        return emptiest_first(room, score, need)
