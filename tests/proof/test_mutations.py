"""The faults of `make mutations` are about the code of today."""

from __future__ import annotations

from tests.paths import ROOT
from tests.proof.mutations import FAULTS


def test_forty_faults_are_told_in_words_and_each_is_expressed_once() -> None:
    assert len({fault.words for fault in FAULTS}) >= 40
    for fault in FAULTS:
        fault.file(ROOT)
