"""`experiments.evaluate flows=`, from the command line to the result file."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ran

TEXT = """\
shard,arrival_ns,size_bytes,src,dst,fct_ns,n_hosts
1,100,952,1,0,,2
0,7.0,1000,0,1,1676.8,2
0,7.0,1000,0,1,1600.0,2
"""


@pytest.fixture
def work(work: Path) -> Path:
    (work / "flows.csv").write_text(TEXT)
    return work


def test_the_result_file_has_the_times_in_the_order_of_the_file(work: Path) -> None:
    found = ran("flows", "flows=flows.csv")
    assert found["fct_ns"] == pytest.approx([800.0, 1676.8, 1676.8], rel=1e-12)
    assert found["flows"] == 3
    assert found["shards"] == 2
    assert found["mean_slow_down"] == pytest.approx(5 / 3)
    assert found["p50_slow_down"] == pytest.approx(2.0)
    assert found["p99_slow_down"] == pytest.approx(2.0)
    assert found["largest_relative_difference"] == pytest.approx(0.048)
    assert list(found["provenance"]["inputs_sha256"]) == ["flows.csv"]


def test_without_given_times_there_is_nothing_to_compare(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "flows.csv").write_text(TEXT.replace("fct_ns", "other"))
    assert ran("flows", "flows=flows.csv")["largest_relative_difference"] is None
    shown = capsys.readouterr().out
    assert "p99_slow_down" in shown
    assert "difference" not in shown
    assert "fct_ns" not in shown
