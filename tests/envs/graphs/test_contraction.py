"""What contraction works out in compiled or vectorised form, beside its plain reading."""

from __future__ import annotations

import numpy as np
import pytest

from envs.graphs.contraction import _propagate, row_codes


@pytest.mark.parametrize("seed", range(5))
def test_codes_of_rows_sort_and_repeat_as_the_rows_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = [random.integers(low, low + span, 200) for low, span in ((-1, 3), (5, 40), (0, 2))]
    code = row_codes(*columns)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for i in range(0, 200, 7):
        for j in range(200):
            assert (code[i] < code[j]) == (rows[i] < rows[j])
            assert (code[i] == code[j]) == (rows[i] == rows[j])
    assert len(row_codes(np.zeros(0, dtype=np.int64))) == 0


@pytest.mark.parametrize("seed", range(5))
def test_levels_rise_along_edges_by_their_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    ends = np.sort(random.integers(0, 30, (80, 2)), axis=1)
    ends = ends[ends[:, 0] < ends[:, 1]]
    edges = np.column_stack([ends, np.arange(len(ends))])[np.argsort(ends[:, 1], kind="stable")]
    step = random.integers(0, 2, len(edges))
    base = random.integers(0, 3, 30)
    level = base.copy()
    _propagate(edges, step, level)
    expected = base.tolist()
    for v in range(30):
        for (u, w, _), up in zip(edges.tolist(), step.tolist(), strict=True):
            if w == v:
                expected[v] = max(expected[v], expected[u] + up)
    assert level.tolist() == expected
