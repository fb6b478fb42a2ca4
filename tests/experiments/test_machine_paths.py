"""Absolute paths leave a document, everything else stays."""

from __future__ import annotations

import pytest

from experiments.run.machine_paths import portable, without_machine_paths
from experiments.run.provenance import Provenance


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
    assert without_machine_paths(text) == expected


def test_documents_keep_their_shape() -> None:
    given = {"a": ["/x/y", 1, None, {"b": "/z/w"}], "c": True}
    assert without_machine_paths(given) == {"a": ["y", 1, None, {"b": "w"}], "c": True}


def test_the_origin_keeps_its_inputs() -> None:
    origin = Provenance(0, {"a": "b"}, "python -m x y=/srv/z", "1", "c", "d")
    assert portable(origin).document() == {**origin.document(), "command": "python -m x y=z"}
