"""The published lists beside those of torch, for every size; in `make proof` only."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from agents.pipeline.published import PUBLISHED
from envs.errors import InputError
from envs.step.pipeline import Work

pytestmark = pytest.mark.proof
CLASSES = {
    "gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "looped_bfs": "ScheduleLoopedBFS",
    "interleaved": "ScheduleInterleaved1F1B", "zb_h1": "ScheduleInterleavedZeroBubble",
    "zb_v": "ScheduleZBVZeroBubble", "dualpipe_v": "ScheduleDualPipeV",
}  # fmt: skip
KINDS = {
    "FORWARD": Work.FORWARD, "BACKWARD_INPUT": Work.INPUT, "BACKWARD_WEIGHT": Work.WEIGHT,
    "FULL_BACKWARD": Work.BACKWARD,
}  # fmt: skip


def torchs(name: str, p: int, m: int, v: int) -> list[list[tuple[Any, ...]]]:
    """The lists of torch's class, made without a process group."""
    from torch.distributed.pipelining import schedules

    made = object.__new__(getattr(schedules, CLASSES[name]))
    rounds = max(1, m // p)
    vars(made).update(
        _n_microbatches=m, _num_stages=p * v, num_stages=p * v, pp_group_size=p,
        _stages=[None] * v, n_local_stages=v, number_of_rounds=rounds,
        microbatches_per_round=m // rounds,
    )  # fmt: skip
    if name in {"gpipe", "1f1b"}:
        rows = made._get_pipeline_order()
    else:
        rows = {rank: made._calculate_single_rank_operations(rank) for rank in range(p)}
    found = []
    for rank in range(p):
        row = []
        for action in filter(None, rows[rank]):
            first = (action.sub_actions or [action])[0]
            kind = KINDS.get(first.computation_type.name)
            if kind is not None:
                beside = [a.stage_index for a in (action.sub_actions or [])[1:]]
                batches = [a.microbatch_index for a in (action.sub_actions or [])[1:]]
                pair = (beside[0], batches[0]) if beside else None
                row.append((kind, first.stage_index, first.microbatch_index, pair))
        if name == "1f1b" and rank == p - 1:  # its forward passes are numbered from 1
            row = [(w, s, k - (w is Work.FORWARD), pair) for w, s, k, pair in row]
        found.append(row)
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_the_lists_are_torchs(name: str) -> None:
    chunks = {"gpipe": [1], "1f1b": [1], "zb_v": [2], "dualpipe_v": [2]}.get(name, [1, 2, 3])
    for p, m, v in product((1, 2, 3, 4, 5, 8, 16), (1, 2, 3, 5, 8, 9, 12, 16, 20, 31, 32), chunks):
        if name == "1f1b" and m < p:
            continue  # torch refuses them
        try:
            mine = PUBLISHED[name](p, m, v)
        except InputError:
            assert (m < 2 * p) if name == "dualpipe_v" else m % max(1, m // p)
            continue
        assert [[tuple(action) for action in row] for row in mine] == torchs(name, p, m, v)
