"""The numbering of multisets."""

from __future__ import annotations

from itertools import permutations

import pytest

from envs.cluster.interference.kernel import NOBODY, count, multisets, rank
from envs.cluster.interference.tabulated import number_of


@pytest.mark.parametrize("largest", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_every_multiset_has_its_own_number(rows: int, largest: int) -> None:
    numbers = [number_of(members, largest) for members in multisets(rows, largest)]
    assert sorted(numbers) == list(range(count(rows, largest)))


@pytest.mark.parametrize("members", [(3, 1, 2), (2, 2, 0), (NOBODY, 4, 1), (NOBODY, NOBODY, 3)])
def test_order_does_not_matter(members: tuple[int, int, int]) -> None:
    assert len({rank(*order, 3) for order in permutations(members)}) == 1
