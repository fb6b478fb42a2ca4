"""A bound on a step under every allocation, from multipliers of paths and links alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agents.bandwidth.convex_program.piped_step import PATH_ROUNDING, Path, PipedStep
from envs.step.plans import LINK_SLACK

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PipeRange:
    """Between which rates the pipes in use are looked for, P of them in ascending number."""

    pipe: IntArray  # (P,) source server * S + destination server
    low: FloatArray  # (P,) bytes/s, >= 0
    high: FloatArray  # (P,) bytes/s


def dual_bound(
    step: PipedStep,
    paths: list[Path],
    path_weight: FloatArray,  # (K,) >= 0, not all 0
    link_price: FloatArray,  # (links,) >= 0
    within: PipeRange,
) -> float:
    """Seconds that no allocation with pipes in the range of `within` beats.

    A step is no shorter than any weighted mean of its paths. With weights l[k] that add up to 1 and
    prices m[e] >= 0 of links of capacity C[e], every feasible allocation b therefore satisfies

        T >= sum_k l[k] (c[k] + sum_j V[k, j] max(1 / B[p(j)], 1 / inner[j]))
             + sum_e m[e] (load[e](b) - C[e])

    The load is linear in the channels' rates, so that a byte/s through pipe p costs at least the
    price q[p] of the cheapest of its channels, the sum of m over its links, and

        T >= sum_k l[k] c[k] - sum_e m[e] C[e]
             + sum_p min { sum_j W[j] max(1 / B, 1 / inner[j]) + q[p] B : low <= B <= high }

    with W = l V over the crossings j of pipe p. Each minimum is that of one convex function, which
    is W / B + q B between two values of `inner`: it lies at an end of the range, at one of those
    values or at sqrt(W / q). The right side is a bound for *any* weights and prices, and whatever
    error they carry, it is only the worse for it; the rounding of the sums is taken off at the end.
    """
    weight = np.maximum(path_weight, 0.0)
    weight = weight / weight.sum()
    price = np.maximum(link_price, 0.0)
    network = step.network
    constant = float(weight @ np.array([path.constant for path in paths]))
    mixed = weight @ np.stack([path.volume for path in paths])  # (J,) bytes
    rent = float(price @ network.link_capacity) * (1.0 + LINK_SLACK)
    of_channel = price @ network.incidence  # (C,) per byte/s
    number = network.channel_pipe
    cheapest = np.full(step.num_servers**2, np.inf)
    np.minimum.at(cheapest, number, of_channel)
    total = 0.0
    for pipe, low, high in zip(within.pipe, within.low, within.high, strict=True):
        inside = step.pipe == pipe
        total += _cheapest_rate(
            mixed[inside], step.inner[inside], float(cheapest[pipe]), float(low), float(high)
        )
    return constant + total - rent - PATH_ROUNDING * (constant + total + rent)


def _cheapest_rate(
    volume: FloatArray,  # (j,) bytes
    inner: FloatArray,  # (j,) bytes/s
    price: float,  # seconds per byte/s
    low: float,
    high: float,
) -> float:
    """The least of sum volume * max(1 / B, 1 / inner) + price * B for B in [low, high]."""
    if not volume.any():
        return price * low
    edges = np.concatenate([[low], np.sort(inner[(inner > low) & (inner < high)]), [high]])
    rates = [edges]
    if price > 0.0:
        for left, right in pairwise(edges.tolist()):
            flowing = float(volume[inner > left].sum())
            rates.append(np.clip([np.sqrt(flowing / price)], left, right))
    rate = np.concatenate(rates)
    rate = rate[rate > 0.0]
    slowness = np.maximum(1.0 / rate[:, None], 1.0 / inner)  # (candidates, j)
    return float((slowness @ volume + price * rate).min())
