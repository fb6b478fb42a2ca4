"""Plans drawn from a placement policy, sweep by sweep; knows numpy alone, and no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.placement import sweeps
from envs.placement.sweeps import CANDIDATE, STATE_FITS, Boards, boards_of, side_by_side
from envs.placement.whole import (
    FEATURES,
    PlacementFacts,
    WholeLayout,
)

FeatureArray = NDArray[np.float32]
SEQUENTIAL, PARALLEL = "sequential", "parallel"
_UNEVEN = 2.0  # groups x devices of the largest problem of a chunk, over those of the smallest


class Views(NamedTuple):
    """What a network reads of B problems, padded to G groups and D devices."""

    node_features: Any  # (B, G, NODE) float32
    node_mask: Any  # (B, G) bool
    node_device_features: Any  # (B, G, D, NODE_DEVICE) float32
    flow: Any  # (B, G, G) float32
    device_features: Any  # (B, D, DEVICE) float32
    device_mask: Any  # (B, D) bool
    link_features: Any  # (B, D, D, LINK) float32
    whole_features: Any  # (B, WHOLE) float32


class Encoded(NamedTuple):
    """What a decoder takes of B problems."""

    nodes: Any  # (B, G, H) float32, their part of the head's first layer
    devices: Any  # (B, D, H) float32, likewise
    order: Any  # (B, GIVEN + 1, O) float32 logits of the order classes
    bent: Any  # (B, O, H) float32, what an order class adds to the nodes


class Composed(NamedTuple):
    """Plans drawn for S samples: devices sweep by sweep; the order class, drawn first, is last."""

    actions: IntArray  # (S, A)
    log_probabilities: FeatureArray  # (S, A), 0 where there is no token
    chances: FeatureArray  # (S, G, D) of every device, in the last sweep


class Chunk(NamedTuple):
    """Some rows of a batch of observations, of problems of about one size."""

    rows: IntArray  # (S,) of the batch
    problem: IntArray  # (S,) each row's among those of the chunk
    start: IntArray  # (S,) each row's
    stands: IntArray  # (S, G) each row's
    views: Views
    given: Boards


class Network(Protocol):
    """A placement policy's two programs."""

    def encode(self, views: Views) -> Encoded:
        """What a decoder takes of the problems."""

    def score(
        self, nodes: FeatureArray, devices: FeatureArray, mask: BoolArray, x: FeatureArray
    ) -> FeatureArray:
        """(S, D) masked logits; of (S, H), (S, D, H), (S, D) and (S, D, CANDIDATE)."""


def views_of(facts: Sequence[PlacementFacts]) -> Views:
    """The problems side by side."""
    found = {name: side_by_side([getattr(one, name) for one in facts]) for name in FEATURES}
    counts = np.array([[one.num_groups, one.num_devices] for one in facts])
    return Views(
        node_mask=np.arange(counts[:, 0].max()) < counts[:, :1],
        device_mask=np.arange(counts[:, 1].max()) < counts[:, 1:],
        **found,
    )


def chunks(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Chunk]:
    """The rows of a batch of observations, stacked, by the sizes of their problems."""
    _, first, problem = np.unique(arrays["sizes"][:, 0], return_index=True, return_inverse=True)
    cells = arrays["sizes"][first, 1] * arrays["sizes"][first, 2]
    order = np.argsort(cells, kind="stable")
    begin = 0
    while begin < len(order):
        end = int(np.searchsorted(cells[order], cells[order[begin]] * _UNEVEN, side="right"))
        chosen = first[order[begin:end]]
        place = np.full(len(first), -1)
        place[order[begin:end]] = np.arange(end - begin)
        rows = np.flatnonzero(place[problem] >= 0)
        own = {name: array[chosen] for name, array in arrays.items()}
        given = boards_of(own)
        sizes = WholeLayout(given.seconds.shape[1], given.seconds.shape[2], 1, 1).shapes
        cut = {
            name: own[name][(slice(None), *(slice(size) for size in sizes[name]))]
            for name in FEATURES
        }
        views = Views(
            node_mask=np.arange(given.seconds.shape[1]) < given.groups[:, None],
            device_mask=np.arange(given.seconds.shape[2]) < given.devices[:, None],
            **cut,
        )
        stands = arrays["stands"][rows, : given.seconds.shape[1]]
        yield Chunk(rows, place[problem[rows]], arrays["sizes"][rows, -1], stands, views, given)
        begin = end


def allowed(given: Boards, problem: IntArray) -> BoolArray:
    """(S, G, D) where each group of each sample can run; all devices where it can run on none."""
    able = given.able[problem]
    real = np.arange(able.shape[2]) < given.devices[problem][:, None]
    return able | (~able.any(axis=2, keepdims=True) & real[:, None, :])


def with_room(masks: BoolArray, x: FeatureArray) -> BoolArray:
    """(..., D) of the devices in `masks` those whose memory holds the state; all if none does."""
    roomy = masks & (x[..., STATE_FITS] > 0.5)
    return np.where(roomy.any(axis=-1, keepdims=True), roomy, masks)


def compose(
    network: Network,
    encoded: Encoded,
    given: Boards,
    problem: IntArray,
    start: IntArray,
    stands: IntArray,
    kinds: Sequence[str],
    temperature: FloatArray,
    random: np.random.Generator,
) -> Composed:
    """Draw a plan for each of S samples, of problems `problem` (S,) whose groups stand at `stands`.

    The numbers of their starts are `start` (S,). A sample of temperature 0 takes what is most
    probable.
    """
    samples, groups = len(problem), given.seconds.shape[1]
    order, of_order, _ = _drawn(encoded.order[problem, start], temperature, random)
    now, masks = sweeps.standing(given, problem, stands), allowed(given, problem)
    exists = np.arange(groups) < given.groups[problem][:, None]
    nodes = encoded.nodes[problem] + encoded.bent[problem, order][:, None, :]
    devices = encoded.devices[problem]
    actions, logs = [], []
    for kind in kinds:
        if kind == PARALLEL:
            x = np.zeros((*masks.shape, CANDIDATE), np.float32)
            sweeps.look_at_all(given, now, x)
            logits = network.score(
                nodes.reshape(samples * groups, -1),
                np.repeat(devices, groups, axis=0),
                with_room(masks, x).reshape(samples * groups, -1),
                x.reshape(samples * groups, -1, CANDIDATE),
            ).reshape(masks.shape)
            chosen, log, chances = _drawn(logits, temperature[:, None], random)
            sweeps.put_all(given, now, chosen)
        else:
            row = np.zeros((samples, masks.shape[2], CANDIDATE), np.float32)
            chosen = np.zeros((samples, groups), np.int64)
            log = np.zeros((samples, groups), np.float32)
            chances = np.zeros(masks.shape, np.float32)
            for group in range(groups):
                sweeps.look(given, now, group, row)
                roomy = with_room(masks[:, group], row)
                logits = network.score(nodes[:, group], devices, roomy, row)
                found = _drawn(logits, temperature, random)
                chosen[:, group], log[:, group], chances[:, group] = found
                sweeps.put(given, now, group, chosen[:, group])
        actions.append(np.where(exists, chosen, 0))
        logs.append(np.where(exists, log, 0.0))
    return Composed(
        np.concatenate([*actions, order[:, None]], axis=1),
        np.concatenate([*logs, of_order[:, None]], axis=1).astype(np.float32),
        chances,
    )


def _drawn(
    logits: FeatureArray, temperature: FloatArray, random: np.random.Generator
) -> tuple[IntArray, FeatureArray, FeatureArray]:
    """Choices over the last axis by the Gumbel trick, their log probabilities, all chances."""
    noise = random.gumbel(size=logits.shape) * temperature[..., None]
    chosen = (logits + noise).argmax(axis=-1)
    weight = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances = weight / weight.sum(axis=-1, keepdims=True)
    own = np.take_along_axis(chances, chosen[..., None], axis=-1)[..., 0]
    return chosen, np.log(np.maximum(own, 1e-30)), chances
