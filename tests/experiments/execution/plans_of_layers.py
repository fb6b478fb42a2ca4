"""Plan files of a small transformer: published orders, one made by hand, replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agents.pipeline.published import gpipe, interleaved, one_f_one_b, v_shaped, zb_h1, zb_v
from envs.hybrid.plan import order_texts
from envs.step.pipeline import Orders

BLOCKS, MICRO_BATCHES = 4, 4
NAMES = ["tok_embeddings", *(f"layers.{block}" for block in range(BLOCKS)), "norm", "output"]
HALVES, QUARTERS = (0, 3, 7), (0, 2, 3, 5, 7)
BY_HAND = [  # stages 0 and 2 on rank 0; the middle one puts its gradients of weights off
    row.split()
    for row in (
        "0F0 0F1 2F0 2B0 0F2 0B0 2F1 2B1 0F3 0B1 2F2 2B2 0B2 2F3 2B3 0B3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
    )
]
Document = dict[str, Any]


def document(
    cuts: Sequence[int], rank: Sequence[int], orders: Sequence[Sequence[str]], replicas: int = 1
) -> Document:
    """A plan file's content: stage s has the layers between two cuts and is on rank `rank[s]`."""
    return {
        "kind": "meshwright.hybrid_plan",
        "schema_version": 1,
        "problem": {"name": "small", "layers": NAMES},
        "topology": "workers",
        "micro_batches": MICRO_BATCHES,
        "stages": [
            {
                "first": first,
                "end": end,
                "devices": [f"worker{rank[s]}.{k}" for k in range(replicas)],
                "shards": 1,
                "shares": None,
                "recompute": False,
            }
            for s, (first, end) in enumerate(pairwise(cuts))
        ],
        "orders": orders,
        "predicted_s": 0.25,
    }


def published(cuts: Sequence[int], rank: Sequence[int], orders: Orders) -> Document:
    return document(cuts, rank, order_texts(orders))


PLANS: dict[str, Document] = {
    "gpipe": published(HALVES, (0, 1), gpipe(2, MICRO_BATCHES, 1)),
    "one_f_one_b": published(HALVES, (0, 1), one_f_one_b(2, MICRO_BATCHES, 1)),
    "interleaved": published(QUARTERS, (0, 1, 0, 1), interleaved(2, MICRO_BATCHES, 2)),
    "zb_h1": published(HALVES, (0, 1), zb_h1(2, MICRO_BATCHES, 1)),
    "zb_v": published(QUARTERS, v_shaped(2), zb_v(2, MICRO_BATCHES, 2)),
    "by_hand": document((0, 2, 5, 7), (0, 1, 0), BY_HAND),
    "replicas": document((0, 7), (0,), order_texts(gpipe(1, MICRO_BATCHES, 1)), replicas=2),
}


def write(folder: Path, name: str, changed: Document | None = None) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**PLANS[name], **(changed or {})}))
    return str(path)
