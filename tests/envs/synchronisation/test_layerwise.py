"""Iterations with a collective for every layer: by hand, and as the authors' simulator has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.synchronisation.layerwise import JITTER, read_layered_models, training_seconds
from envs.synchronisation.switch_aggregation import SlotPool
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.refusal import refusal

HEADER = "gpu,model,layer,elements,forward_ps,backward_ps,update_ps\n"
TOY = "x,toy,0,1114500,1000000000,3000000000,1000000000\nx,toy,1,1114500,3000000000,2000000000,0\n"


def over_switches(gbps: float, sizes: np.ndarray) -> np.ndarray:
    return SlotPool().seconds(sizes, gbps * 1.25e8, 1e-6)


def test_iterations_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(HEADER + TOY)
    model = read_layered_models(path, "x")["toy"]
    # 1,114,500 elements are 500 packets of 9000 bytes, 7.2 us each at 10 Gb/s; with the switch's
    # own sending and two links of 1 us 3.6092 ms a layer. Layer 1 is ready at 1 + 3 + 2 = 6 ms,
    # layer 0 at 9 ms: sums at 9.6092 and 13.2184 ms. The update takes 1 ms, and then all begins
    # again.
    for count in (1, 2):
        found = training_seconds(model, lambda sizes: over_switches(10.0, sizes), count)
        assert found == pytest.approx(count * 14.2184e-3, rel=1e-9)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("x,toy,3,1,1,1,1\n", r"record row 3 \(line 4\): field 'layer': '3' does"),
        ("x,other,0,0,1,1,1\n", r"record row 3 \(line 4\): field 'elements': '0' is zero"),
        ("x,other,0,1,-1,1,1\n", r"record row 3 \(line 4\): field 'forward_ps': '-1' is neg"),
        ("x,other,0,1\n", r"record row 3 \(line 4\): has 4 cells"),
    ],
)
def test_layers_that_make_no_sense_are_refused(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(HEADER + TOY + line)
    with refusal(told):
        read_layered_models(path, "x")


def test_dedicated_jobs_take_what_the_published_simulator_says(data: Path) -> None:
    models = read_layered_models(data / "network/switchml/layers.csv", "a100_match_v100_bs")
    published = SHIPPED_CONFIGS.node("aggregation")["published"]
    assert set(published) == set(models)
    for name, model in models.items():
        for count, known in zip((1, 10), published[name], strict=True):
            found = training_seconds(
                model, lambda sizes: over_switches(10.0, sizes), count, 2, JITTER, range(20)
            )
            assert found.mean() == pytest.approx(known, rel=0.02), name
    # At 100 Gb/s a comment in the simulator's configuration knows BERT, on links without latency.
    found = training_seconds(
        models["bert"], lambda sizes: over_switches(100.0, sizes), 1, 2, JITTER, range(20)
    )
    assert found.mean() == pytest.approx(0.143306406924, rel=0.02)
