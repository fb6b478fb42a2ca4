from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envs.errors import InputError
from experiments.cluster.trace_source import read_workload, write_workload
from experiments.run.provenance import Provenance
from tests.paths import CONF

SHIPPED = CONF / "workload"


@pytest.mark.parametrize("name", ["itp", "philly"])
def test_a_written_file_reads_as_before(name: str, tmp_path: Path) -> None:
    shipped = read_workload(str(SHIPPED / f"{name}.yaml"))
    path = tmp_path / "mine.yaml"
    write_workload(path, shipped, "mine", Provenance(seed=3))
    assert read_workload(str(path)).document() == shipped.document()
    lines = path.read_text().splitlines()
    assert lines[0] == "# mine"
    assert '"kind": "meshwright.workload"' in lines[1]
    assert lines[2:] == (SHIPPED / f"{name}.yaml").read_text().splitlines()[2:]
    assert all(len(line) <= 100 for line in lines[2:])
    for line in lines[3:]:
        if line.lstrip(" -")[0].isalpha():
            assert "  # " in line
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("_target_: envs.cluster.interference.rates.NoInterference\n")
    with pytest.raises(InputError, match="no parameters of a workload"):
        read_workload(str(path))
    document = yaml.safe_load((SHIPPED / "itp.yaml").read_text())
    document["burst_share"] = 7
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="burst_share") as caught:
        read_workload(str(path))
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_workload(str(tmp_path / "missing.yaml"))
