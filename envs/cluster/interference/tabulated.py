"""Any function of a job's profile and its neighbours' as tables, a learned predictor too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from envs.arrays import FloatArray, IntArray
from envs.bounds import bounded
from envs.cluster.interference.kernel import LARGEST, NOBODY, count, multisets, rank
from envs.cluster.interference.rates import SETS, RateModel, RateTables, with_rows
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

# What neighbours leave a job: (B,) rates, alone = 1, for (B,) profiles and (B, L) profiles of their
# neighbours. A row of neighbours is ascending; absent ones are `NOBODY` and come first.
Predictor = Callable[[IntArray, IntArray], FloatArray]
# (J,) which of the predictor's profiles every job has, by a seed: as `cases.assign` does.
Assignment = Callable[[Trace, int], IntArray]


@bounded
class TabulatedRates:
    """Evaluates `predict` once for every profile and every multiset of up to `largest` neighbours.

    The simulator then only looks rates up, so that neither its speed nor its reproducibility
    depends on the predictor. On a node with more neighbours a job runs at the least rate that any
    `largest` of them leave: the best upper bound that monotonicity gives.

    The tables are made monotone: the rate beside some neighbours is the least of what `predict`
    says for them and for all of their subsets, and at most 1. There are n C(n + largest, largest)
    entries for n profiles: 30 profiles with 3 neighbours are 164 thousand.

    Args:
        predict: the function.
        profiles: their number.
        assign: gives every job its profile.
        alone: speed and locality of jobs; what it says of neighbours is not used.
        largest: of the multisets: 1, 2 or 3.
        scope: who is a neighbour: `rates.ON_NODE`, `ON_GPU` or `SPANNING`.
        seed: of the profiles of jobs without a model.

    Raises:
        InputError: a prediction is not finite and above 0.
    """

    def __init__(
        self,
        name: str,
        predict: Predictor,
        profiles: int,
        assign: Assignment,
        alone: RateModel,
        largest: Annotated[int, Ge(1), Le(LARGEST)],
        scope: int,
        seed: int,
    ) -> None:
        self.name, self.assign, self.alone = name, assign, alone
        self.largest, self.scope, self.seed = largest, scope, seed
        self.sets = tabulate(predict, profiles, largest)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        alone, row = self.alone.tables(trace, cluster), self.assign(trace, self.seed)
        return with_rows(alone, row, len(self.sets))._replace(
            kind=SETS,
            scope=self.scope,
            feasible=np.ones((len(self.sets), len(self.sets)), np.bool_),
            sets=self.sets.copy(),
            largest=self.largest,
        )


def tabulate(predict: Predictor, profiles: int, largest: int) -> FloatArray:
    """(n, C(n + largest, largest)) monotone rates by `multisets.rank`.

    Raises:
        InputError: a prediction is not finite and above 0.
    """
    column = {members: number_of(members, largest) for members in multisets(profiles, largest)}
    padded = np.array([_padded(members, largest) for members in column])[
        1:
    ]  # all but the empty one
    own = np.repeat(np.arange(profiles), len(padded))
    found = np.asarray(predict(own, np.tile(padded, (profiles, 1))), np.float64)
    if found.shape != own.shape or not (np.isfinite(found) & (found > 0.0)).all():
        raise InputError(f"is not {len(own)} finite numbers above 0", field="predict")
    rates = np.ones((profiles, count(profiles, largest)))
    rates[:, list(column.values())[1:]] = found.reshape(profiles, len(padded))
    for members, at in column.items():  # smaller ones first
        fewer = [column[members[:gone] + members[gone + 1 :]] for gone in range(len(members))]
        rates[:, at] = rates[:, [at, *fewer]].min(axis=1).clip(max=1.0)
    return rates


def number_of(members: Sequence[int], largest: int) -> int:
    """The column of a multiset of at most `largest` rows."""
    a, b, c = (int(member) for member in _padded(members, LARGEST))
    return int(rank(a, b, c, largest))


def _padded(members: Sequence[int], size: int) -> IntArray:
    return np.array([NOBODY] * (size - len(members)) + sorted(members), np.int64)
