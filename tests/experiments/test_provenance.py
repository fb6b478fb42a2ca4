"""Absolute paths leave a document, everything else stays."""

from __future__ import annotations

import subprocess

import pytest

from experiments.run.provenance import Provenance, portable, source_commit, without_absolute_paths
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/data/x.csv", "x.csv"),
        ("a.path=/srv/run/durations b='/srv/y' c=[/srv/z,/w]", "a.path=durations b='y' c=[z,w]"),
        ("FLOP/s", "FLOP/s"),
        ("log2 of the GPUs / 4", "log2 of the GPUs / 4"),
        ("https://host/a/b", "https://host/a/b"),
        ("runs/0/checkpoint ../x ~/y", "runs/0/checkpoint ../x ~/y"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert without_absolute_paths(text) == expected


def test_documents_keep_their_shape() -> None:
    given = {"a": ["/x/y", 1, None, {"b": "/z/w"}], "c": True}
    assert without_absolute_paths(given) == {"a": ["y", 1, None, {"b": "w"}], "c": True}


def test_the_origin_keeps_its_inputs() -> None:
    origin = Provenance(0, {"a": "b"}, "python -m x y=/srv/z", "1", "c", "d")
    assert portable(origin).document() == {**origin.document(), "command": "python -m x y=z"}


def test_the_commit_is_that_of_this_checkout() -> None:
    root = ROOT
    if not (root / ".git").exists():
        pytest.skip("no checkout")
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert source_commit().removesuffix("-dirty") == head
