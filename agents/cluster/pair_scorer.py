"""A learned policy over pairs of a job and a place, compiled: it needs no torch."""

from __future__ import annotations

import numpy as np

from agents.cluster.compiled.joint_replay import Scorer, scorer_of
from agents.cluster.compiled.pairs import EDGE_WIDTH, NODE_WIDTH, PAIR_WIDTH, Weights
from agents.cluster.shipped import scheduler_folder
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.errors import InputError
from models.export.checkpoint import WEIGHTS_FILE
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
        found = read_pairs(self.folder)
        width = len(found.get("score", ()))
        shapes = _shapes(width)
        for name, shape in shapes.items():
            if name not in found or found[name].shape != shape or set(found) != set(shapes):
                told = f"{name} is not of shape {shape}, or there are other weights"
                raise InputError(told, file=self.folder / WEIGHTS_FILE)
        self.weights = Weights(**{x: np.ascontiguousarray(found[x], np.float32) for x in shapes})
        self.first, self.sure, self.patience_s = int(first), float(sure), float(patience_s)

    def compiled(self, nodes: int) -> Scorer:
        """For compiled code, on so many nodes."""
        return scorer_of(self.weights, nodes, self.first, self.sure, self.patience_s)


def no_scorer(nodes: int) -> Scorer:
    """In the place of one, where the rule decides alone."""
    weights = Weights(**{x: np.zeros(shape, np.float32) for x, shape in _shapes(0).items()})
    return scorer_of(weights, nodes, 0, 0.0, 1.0)


def _shapes(width: int) -> dict[str, tuple[int, ...]]:
    return pair_shapes(NODE_WIDTH, EDGE_WIDTH, PAIR_WIDTH, width)
