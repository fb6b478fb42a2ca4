"""What is written can be read again."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from experiments.run.artifacts import to_yaml
from experiments.run.provenance import Provenance


@given(st.text(alphabet="0123456789abef+-._: '#", max_size=8))
@example("6214e9")
@example("0e4a51")
@example("1e5")
@example("nan")
@example("null")
@example("on")
def test_strings_stay_strings(text: str) -> None:
    document = {"queue": text, "number": 1e9, "list": [text, 3, None, True, "a"]}
    written = to_yaml(document, Provenance(seed=0))
    assert yaml.safe_load(written) == document
    assert OmegaConf.to_container(OmegaConf.create(written)) == document
