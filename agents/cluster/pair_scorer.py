"""A learned policy over pairs of a job and a place, compiled: it needs no torch."""

from __future__ import annotations

import numpy as np

from agents.cluster.compiled.joint_replay import Scorer, scorer_of
from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH, Weights
from agents.cluster.shipped import scheduler_folder
from envs.bounds import Count, NonNegative, Positive, bounded
from models.export.pairs import pair_shapes, read_pairs


@bounded
class PairScorer:
    """Scores what a scheduler could do next; the best is done where it is better than the rule's.

    Guarantees:
        While a job of the scheduler has waited for longer than `patience_s`, the rule decides.

    Args:
        path: a folder that `experiments.train env=decisions` wrote, or a shipped scheduler's name.
        first: pending jobs whose places are scored.
        sure: by which a score must exceed that of what the rule does; in training it was the
            policy's head start.
        patience_s: seconds.

    Raises:
        InputError: the folder is none of these, or a file in it is damaged, foreign or of others.
    """

    def __init__(self, path: str, first: Count, sure: NonNegative, patience_s: Positive) -> None:
        self.folder = scheduler_folder(path)
        found = read_pairs(self.folder, NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH)
        self.weights = Weights(
            **{x: np.ascontiguousarray(found[x], np.float32) for x in Weights._fields}
        )
        self.first, self.sure, self.patience_s = int(first), float(sure), float(patience_s)

    def compiled(self, nodes: int) -> Scorer:
        """For compiled code, on so many nodes."""
        return scorer_of(self.weights, nodes, self.first, self.sure, self.patience_s)


def no_scorer(nodes: int) -> Scorer:
    """In the place of one, where the rule decides alone."""
    shapes = pair_shapes(NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH, 0)
    weights = Weights(**{x: np.zeros(shape, np.float32) for x, shape in shapes.items()})
    return scorer_of(weights, nodes, 0, 0.0, 1.0)
