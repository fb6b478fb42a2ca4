from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from commands import ran
from refusals import Refuses

from envs.errors import InputError
from experiments.cluster.evaluate_cluster import CompareConfig
from experiments.cluster.problem import cluster_of
from experiments.cluster.trace_source import LoadedTrace, load_trace, read_workload, write_workload
from experiments.compare import main
from experiments.config.composing import check_command_line
from experiments.run.provenance import Provenance
from tests.paths import CONF

SHIPPED = CONF / "workload"
SIX = "job_id,submit_s,duration_s,num_gpus\n" + "".join(
    f"{name},{100_000 * number},{50 + number},{gpus}\n"
    for number, (name, gpus) in enumerate(zip("abcdef", (1, 2, 128, 1, 1, 1), strict=True))
)


def asked_of_compare(*words: str) -> LoadedTrace:
    """What `experiments.compare` replays."""
    config = check_command_line(words, "compare", CompareConfig).config
    return load_trace(config.trace, cluster_of(config.cluster))


def test_a_file_is_replayed_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "six.csv"
    path.write_text(SIX)
    file = (f"trace.path={path}", "trace.format=canonical")
    found = asked_of_compare(*file)
    assert found.trace.submit_s.tolist() == [100_000 * number for number in range(6)]
    assert (found.left_out, found.stretched, found.offered) == ({}, 1.0, None)
    assert list(found.changes()) == []


def test_what_is_asked_for_is_said_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "six.csv"
    path.write_text(SIX)
    file = (f"trace.path={path}", "trace.format=canonical")
    found = asked_of_compare(*file, "trace.max_gpus=96", "trace.head=4", "trace.load=0.9")
    assert len(found.trace) == 4
    assert found.left_out == {"trace.max_gpus=96": 1, "trace.head=4": 1}
    assert found.offered is not None
    assert (found.offered.load, found.offered.gpus) == (0.9, 96)  # of the cluster
    assert found.stretched == pytest.approx(found.trace.span_s / 400_000, rel=0.3)
    lines = list(found.changes())
    assert [line.partition(":")[0] for line in lines] == ["left out", "left out", "changed", "set"]
    halves = asked_of_compare(*file, "trace.max_gpus=96", "trace.load=0.9", "trace.gpu_milli=500")
    assert (halves.trace.gpu_milli == 500).all()
    whole = asked_of_compare(*file, "trace.max_gpus=96", "trace.load=0.9")
    assert (halves.trace.submit_s == whole.trace.submit_s).all()  # the load is set before
    counts = found.counts()
    assert (counts["rows"], counts["left_out_jobs"], counts["jobs"]) == (6, 2, 4)
    with pytest.raises(InputError, match=r"trace\.gpus.*says nothing without trace\.load"):
        asked_of_compare(*file, "trace.gpus=96")


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (["cluster.nodes=2"], "row 3 \\(line 4\\).*'gpu_count'.*trace.max_gpus=16"),
        (
            ["cluster.nodes=2", "trace.max_gpus=16", "cluster.gpu_types=[V100,T4]"],
            "row 2 \\(line 3\\).*'gpu_count'.*trace.max_gpus=8",
        ),
    ],
)
def test_a_job_that_is_too_large_is_told_by_its_row_before_any_policy_runs(
    words: list[str], row: str, work: Path, refuses: Refuses
) -> None:
    path, columns = work / "own.csv", "submit: created_at, duration: runtime, gpus: gpu_count"
    path.write_text("created_at,runtime,gpu_count\n200,50,1\n60,50,12\n70,200,32\n")
    file = [f"trace.path={path}", f"trace.columns={{{columns}}}", "trace.format=canonical"]
    assert re.search(f"{re.escape(str(path))}.*{row}", refuses(main, [*file, *words]))


def test_what_a_table_of_ones_own_lacks_is_said_with_its_cure(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("created_at,runtime,gpu_count\n200,50,1\n")
    with pytest.raises(InputError, match=r"job_id.*trace\.columns="):
        asked_of_compare(f"trace.path={path}", "trace.format=canonical")
    with pytest.raises(InputError, match=r"trace\.columns.*trace\.format=canonical"):
        asked_of_compare(f"trace.path={path}", "trace.columns={gpus: gpu_count}")


def test_some_policies_are_compared_and_ties_are_told(work: Path, refuses: Refuses) -> None:
    path = work / "one.csv"
    path.write_text("submit_s,duration_s,num_gpus,job_id\n0,50,1,a\n90,50,1,b\n")
    found = ran(main, f"trace.path={path}", "trace.format=canonical", "policies=[srtf,fifo]")
    assert [row["policy"] for row in found["policies"]] == ["fifo", "srtf"]
    assert (found["best"], found["as_good"]) == ("fifo", "srtf")
    refuses(main, ["policies=[fifx]"], "'policies'")


def test_generated_jobs_fit_the_cluster_at_the_load_that_compare_states() -> None:
    found = asked_of_compare("cluster.nodes=4")
    assert int(found.trace.num_gpus.max()) <= 32
    assert found.offered is not None
    assert (found.offered.load, found.offered.gpus) == (0.9, 32)
    assert found.left_out.keys() == {"trace.max_gpus=32"}
    assert sum(found.left_out.values()) + len(found.trace) == found.read.rows == 1000
    assert found.trace.offered_load(32) == pytest.approx(0.9, rel=1e-3)
    assert found.stretched == pytest.approx(1.0, abs=0.05)  # days keep their 24 hours
    first = asked_of_compare("cluster.nodes=4", "trace.head=300")
    assert first.trace.offered_load(32) == pytest.approx(0.9, rel=1e-3)


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
    for above, line in pairwise(lines[2:]):
        if line.lstrip(" -")[0].isalpha():
            assert above.lstrip().startswith("# ")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.yaml"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("_target_: envs.cluster.interference.rates.NoInterference\n")
    with pytest.raises(InputError, match="describes no workload"):
        read_workload(str(path))
    document = yaml.safe_load((SHIPPED / "itp.yaml").read_text())
    document["burst_share"] = 7
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(InputError, match="burst_share") as caught:
        read_workload(str(path))
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_workload(str(tmp_path / "missing.yaml"))
