"""Sparse vectors that make no sense are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.synchronisation.sparsity import Pattern, drawn_blocks
from experiments.network.synchronising import sparse_blocks
from tests.refusal import refusal


def test_workers_cannot_have_more_blocks_to_themselves_than_there_are() -> None:
    with refusal(r"density.*3 workers cannot have 0\.4"):
        drawn_blocks(Pattern.DISJOINT, 3, 10, 0.4, 0)


@pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ({"block": 16}, "give block, density and pattern, or block and gradients"),
        ({"block": 15, "gradients": "x.npy"}, "15 is no multiple of 4 bytes"),
        ({"block": 16, "gradients": "layers.csv"}, "layers.csv: is no array of numpy"),
        ({"block": 16, "density": 2, "pattern": "random"}, "'sparsity.density': 2 is no share"),
        ({"block": 16, "density": 1, "pattern": "x"}, "'x' is not one of random, overlapping"),
    ],
)
def test_sparsity_that_makes_no_sense_is_refused(
    sparsity: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.csv").write_text("no array")
    with refusal(message):
        sparse_blocks(sparsity, 8, 1e6, 0)
