"""Bounds on the largest load from compute alone: how many devices the items left need."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.placement.ideals.items import FloatArray, IntArray, Items

_LP_SECONDS = 1.0  # the linear programs only choose prices: any of them give a bound
_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, eq=False)
class Supply:
    """R pricings of the K classes, each a bound on the load of every placement.

    With price y_k for a second of a device of class k, item v costs at least
    need_v = min_k y_k seconds[v, k], and devices that are busy for T seconds at most pay for
    T sum_k left_k y_k: hence T >= sum of need / sum of the prices of the devices left.
    """

    need: FloatArray  # (R, n)
    price: FloatArray  # (R, K), inf: any device of the class can take all items
    bound: float  # seconds: for all items and devices

    def of(self, left: IntArray) -> FloatArray:
        """(R, S) priced devices for S vectors of devices `left` (K, S)."""
        finite = np.where(np.isfinite(self.price), self.price, 0.0) @ left
        free = np.isinf(self.price) @ left > 0
        return np.where(free, np.inf, finite)


def supplies(items: Items) -> Supply:
    """Prices from linear programs over all classes, and with each class left out."""
    classes = items.seconds.shape[1]
    subsets = [np.arange(classes)] + [np.delete(np.arange(classes), k) for k in range(classes)]
    needs, prices = [], []
    for subset in subsets:
        if not len(subset) or not np.isfinite(items.seconds[:, subset]).any(axis=1).all():
            continue
        price = np.full(classes, np.inf)
        price[subset] = _prices(items.seconds[:, subset], items.class_sizes[subset])
        with np.errstate(invalid="ignore"):
            paid = np.where(np.isfinite(items.seconds), items.seconds * price, np.inf)[:, subset]
        needs.append(paid.min(axis=1))
        prices.append(price)
    supply = Supply(
        np.array(needs).reshape(len(needs), items.count),
        np.array(prices).reshape(len(prices), classes),
        float(items.seconds.min(axis=1).max(initial=0.0)),
    )
    for need, left in zip(supply.need, supply.of(items.class_sizes[:, None])[:, 0], strict=True):
        bound = float(need.sum() / left) * (1.0 - _ROUNDING)
        supply = Supply(supply.need, supply.price, max(supply.bound, bound))
    return supply


def _prices(seconds: FloatArray, sizes: IntArray) -> FloatArray:
    """(K,) prices under which the bound is that of splitting items freely, or equal prices."""
    scale = float(np.where(np.isfinite(seconds), seconds, 0.0).max(initial=0.0))
    classes = len(sizes)
    if classes == 1 or scale == 0.0:
        return np.ones(classes)
    kinds, inverse = np.unique(seconds, axis=0, return_inverse=True)
    times = np.bincount(inverse.ravel(), minlength=len(kinds))
    work = np.where(np.isfinite(kinds), kinds, 0.0) * times[:, None] / scale
    program = LinearProgram()
    load = program.add_columns(1, cost=1.0)
    share = program.add_columns(kinds.shape, upper=np.where(np.isfinite(kinds), 1.0, 0.0))
    for k in range(classes):
        program.add_row([(load, float(sizes[k])), (share[:, k], -work[:, k])], lower=0.0)
    for row in share:
        program.add_row([(row, 1.0)], lower=1.0, upper=1.0)
    solver = program.solver(time_limit=_LP_SECONDS)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.ones(classes)
    dual = np.maximum(np.array(solver.getSolution().row_dual[:classes], dtype=np.float64), 0.0)
    return dual if dual.any() else np.ones(classes)
