"""Orders in which an epoch visits the training nodes, and how far batches are from their whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.data_pipeline.blocks import grow
from envs.bounds import Count, bounded
from envs.data_pipeline.graph import Graph, IntArray, NodeArray
from envs.data_pipeline.pipeline import FloatArray
from envs.errors import InputError


@bounded
@dataclass(frozen=True)
class ProximityOrder:
    """Sequences of near nodes; batches take from all alike, each `shifted` by a random number.

    Guarantees:
        Let K sequences divide both the training nodes and a batch. Whatever the graph and its
        labels, the expected distribution of labels in a batch is that of the training nodes, and
        the expected distance from it (total variation) is at most `label_bound`. It exceeds its
        expectation by t with a probability of at most exp(-2 K t^2) (McDiarmid).

    Source:
        The order is that of BGL (Liu et al., arXiv 2112.08541), reconstructed from its abstract;
        the guarantee and its proof (docs/data_pipeline.md) are ours.
    """

    sequences: Count
    reach: Count  # nodes around one root, those that do not train among them

    def near(self, graph: Graph, training: NodeArray, rng: np.random.Generator) -> NodeArray:
        """(sequences, length) breadth-first around one random root after another.

        Raises:
            InputError: the training nodes are no multiple of the sequences.
        """
        if len(training) % self.sequences:
            fault = f"{len(training)} training nodes are no multiple of {self.sequences}"
            raise InputError(fault, field="sequences")
        block, step = grow(graph, self.reach, rng)
        turn = rng.permutation(block.max() + 1)[block[training]]
        ordered: NodeArray = training[np.lexsort((step[training], turn))]
        return ordered.reshape(self.sequences, -1)


def shifted(sequences: NodeArray, shift: IntArray) -> NodeArray:
    """The first of every sequence, then the second, ..., where each begins at its `shift`."""
    places = (np.arange(sequences.shape[1]) + shift[:, None]) % sequences.shape[1]
    return np.take_along_axis(sequences, places, axis=1).T.ravel()


def label_distance(graph: Graph, order: NodeArray, batch: int) -> FloatArray:
    """(whole batches,) total variation between the labels of a batch and of all of `order`."""
    label, classes = graph.label[order], int(graph.label.max()) + 1
    whole = np.bincount(label, minlength=classes) / len(order)
    count = len(order) // batch
    key = np.repeat(np.arange(count), batch) * classes + label[: count * batch]
    own = np.bincount(key, minlength=count * classes).reshape(count, classes) / batch
    found: FloatArray = np.abs(own - whole).sum(axis=1) / 2.0
    return found


def label_bound(graph: Graph, sequences: NodeArray, batch: int) -> tuple[float, float]:
    """What the expected distance of a batch is at most: of these sequences, and of any.

    Windows of one sequence that begin at a random place have the variance var_kc in the share of
    class c. By Jensen's inequality E TV <= sum_c sqrt(sum_k var_kc) / 2K, where var_kc is at most
    p_kc (1 - p_kc), and by another of Jensen's that is at most sum_c sqrt(p_c (1 - p_c) / K) / 2.
    """
    count, length = sequences.shape
    width, label = batch // count, graph.label[sequences]
    own, any_order = 0.0, 0.0
    for c in range(int(graph.label.max()) + 1):
        upto = np.cumsum(np.pad(label == c, ((0, 0), (1, width)), "wrap"), axis=1)[
            :, -length - width :
        ]
        share = (upto[:, width:] - upto[:, :-width]) / width
        own += float(np.sqrt(share.var(axis=1).sum())) / (2.0 * count)
        p = float((label == c).mean())
        any_order += float(np.sqrt(p * (1.0 - p) / count)) / 2.0
    return own, any_order
