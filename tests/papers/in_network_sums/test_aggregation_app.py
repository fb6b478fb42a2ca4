"""`meshwright evaluate env=aggregation`, and OmniReduce in `meshwright synchronise`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.files import read_json
from experiments.command_line import run_job
from experiments.synchronise import main as synchronise

pytestmark = pytest.mark.slow
LAYERS = "gpu,model,layer,elements,forward_ps,backward_ps,update_ps\nx,toy,0,9999,10,10,10\n"


@pytest.fixture
def work(work: Path) -> Path:
    (work / "layers.csv").write_text(LAYERS)
    return work


def test_all_tables_of_a_file(work: Path) -> None:
    words = "layers=layers.csv gpu=x gbps=[10.0] jitter=0 runs=1 sparse=[[99.0,3.1]]"
    assert run_job("aggregation", [*words.split(), "hydra.run.dir=run"]) == 0
    found = read_json(work / "run/result.json")
    assert [row["iterations"] for row in found["dedicated"]] == [1, 10]
    # All is the network's: a ring's links carry 14/8 of the bytes, a single server's 8 times.
    assert found["speed_ups"][0]["over_server"] > 3 * found["speed_ups"][0]["over_ring"] > 3
    assert found["largest_difference_ms"] < 0.3
    for row in found["losses"]:
        assert (
            (row["sent_again"] > 0)
            == (row["loss"] > 0)
            == (row["ms"] > 1.001 * row["closed_form_ms"])
        )
    assert all(row["relative_error"] < row["bound"] for row in found["integers"])


def test_omnireduce_sends_the_blocks_of_a_file_of_gradients(work: Path) -> None:
    values = np.zeros((8, 8192), dtype=np.float32)
    values[:, 7000] = 1.0  # in the same block of every worker
    np.save(work / "gradients.npy", values)
    words = "agent=omnireduce topology=dgx1 optimum=false hydra.run.dir=run"
    sparsity = "sparsity={block: 16, gradients: gradients.npy}"
    assert synchronise([*words.split(), sparsity]) == 0
    found = read_json(work / "run/result.json")
    assert found["bytes"] == 4 * 8192
    # Beside that block, every worker sends the first row of 8 x 8 x 4 columns.
    assert found["figures"]["sent_bytes"] == 8 * (257 * (16 + 4) + 65 * 82)
    assert "warnings" not in found  # what a dense plan needs was not asked for
    assert synchronise(["agent=omnireduce", "topology=dgx1", "hydra.run.dir=dense"]) == 0
    found = read_json(work / "dense/result.json")
    assert found["of_optimum"] < 1
    (warning,) = found["warnings"]
    assert "best dense plan" in warning
