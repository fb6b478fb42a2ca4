"""Which workers form which groups in a slot: a tentative search, one move at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from envs.arrays import FloatArray
from envs.hybrid.batch_time import COSTS, Batch, BatchTime, Groups

FREE = np.zeros(len(COSTS))
UNLIMITED = np.full(len(COSTS), np.inf)
_CLOSE = 1e-9  # relative: not better, not above a limit


def search(
    batch: BatchTime,
    starts: Iterable[Groups] = (),
    *,
    price: FloatArray = FREE,
    limit: FloatArray = UNLIMITED,
) -> Batch:
    """The groups with least seconds + price @ cost, of those met whose costs keep to `limit`.

    It goes downhill from each of `starts` and from the best worker alone. Where nothing keeps to
    the limit, the least excess counts.
    """

    def value(groups: Groups) -> tuple[float, float]:
        found = batch.best(groups)
        excess = max(0.0, float((found.cost / limit).max()) - 1.0 - _CLOSE)
        return excess, found.seconds + float(price @ found.cost)

    alone: Groups
    best = alone = min((((worker,),) for worker in range(batch.num_workers)), key=value)
    for groups in dict.fromkeys((alone, *starts)):
        now, least, better = groups, value(groups), True
        while better:
            better = False
            for other in neighbours(now, batch.num_workers, len(batch.layers.seconds)):
                found = value(other)
                if found < (least[0], least[1] * (1.0 - _CLOSE)):
                    now, least, better = other, found, True
                    break
        best = min(best, now, key=value)
    return batch.best(best)


def neighbours(groups: Groups, workers: int, longest: int) -> Iterator[Groups]:
    """Groups that differ by the place of one worker or two, a merger or a split.

    None has more than `longest` workers. A worker that is in no group has nothing to do.
    """
    for worker in range(workers):
        rest = tuple(left for group in groups if (left := tuple(w for w in group if w != worker)))
        if rest:
            yield from {_sorted(rest)} - {groups}
        for k, group in enumerate(rest):
            for place in range(len(group) + 1 if len(group) < longest else 0):
                yield _sorted((*rest[:k], (*group[:place], worker, *group[place:]), *rest[k + 1 :]))
        yield _sorted((*rest, (worker,)))
    for one in groups:
        others = tuple(group for group in groups if group != one)
        for k, two in enumerate(others):
            if len(one) + len(two) <= longest:
                yield _sorted((*others[:k], one + two, *others[k + 1 :]))
        for place in range(1, len(one)):
            yield _sorted((*others, one[:place], one[place:]))
    for pair in itertools.combinations(range(workers), 2):
        swapped = dict(zip(pair, pair[::-1], strict=True))
        yield _sorted(tuple(tuple(swapped.get(w, w) for w in group) for group in groups))


def _sorted(groups: Groups) -> Groups:
    return tuple(sorted(groups))
