"""Iterations with a collective for every layer, by hand; files of measured layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.synchronisation.layerwise import read_layered_models, training_seconds
from tests.refusal import refusal

HEADER = "gpu,model,layer,elements,forward_ps,backward_ps,update_ps\n"
TOY = "x,toy,0,1114500,1000000000,3000000000,1000000000\nx,toy,1,1114500,3000000000,2000000000,0\n"


def test_iterations_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(HEADER + TOY)
    model = read_layered_models(path, "x")["toy"]
    # Sums take 3.6092 ms a layer. Layer 1 is ready at 1 + 3 + 2 = 6 ms, layer 0 at 9 ms: sums at
    # 9.6092 and 13.2184 ms. The update takes 1 ms, and then all begins again.
    for count in (1, 2):
        found = training_seconds(model, lambda sizes: sizes / 4_458_000 * 3.6092e-3, count)
        assert found == pytest.approx(count * 14.2184e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x,toy,3,1,1,1,1\n", r"record row 3 \(line 4\): field 'layer': '3' does"),
        ("x,other,0,0,1,1,1\n", r"record row 3 \(line 4\): field 'elements': '0' is zero"),
        ("x,other,0,1,-1,1,1\n", r"record row 3 \(line 4\): field 'forward_ps': '-1' is neg"),
        ("x,other,0,1\n", r"record row 3 \(line 4\): has 4 cells"),
    ],
)
def test_layers_that_make_no_sense_are_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(HEADER + TOY + line)
    with refusal(message):
        read_layered_models(path, "x")
