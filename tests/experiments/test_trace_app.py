"""`experiments.trace`, from the command line to the files."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ran
from file_server import Served, serving

from envs.cluster.workload.parquet import read_frame, read_parquet
from envs.cluster.workload.readers.canonical import CanonicalReader
from envs.files import read_json
from experiments.command_line import run_job
from tests.paths import CONF

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 06:00:00,3600.0,1,3600.0,a
2017-10-09 07:00:00,7200.0,8,57600.0,b
2017-10-09 08:00:00,0.0,8,0.0,b
2017-10-10 07:00:00,100.0,x,0.0,b
2017-10-10 07:00:01,100.0,4,400.0,a
"""
ITP = "job_id,submission_time,duration,num_gpu\nb,5,600,1\na,5,700,2\nc,9,800,4\n"


@pytest.fixture
def work(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (work / "philly.csv").write_text(PHILLY)
    (work / "itp.csv.gz").write_bytes(gzip.compress(ITP.encode()))
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)  # where downloads would come to
    return work


def done(work: Path, *arguments: str) -> dict[str, Any]:
    run = f"run{len(list(work.glob('run*')))}"
    return ran("trace", *arguments, run=run)


def test_summary(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = done(work, "trace.path=philly.csv", "trace.format=philly", "trace.strict=false")
    assert (found["rows"], found["jobs"], found["rejected_rows"]) == (5, 3, 2)
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    assert found["rejected"] == {"duration is zero": 1, "num_gpus is not a number": 1}
    assert found["gpu_hours"] == pytest.approx((3600 + 57600 + 400) / 3600)
    assert found["arrivals_by_hour"] == [0] * 6 + [1, 2] + [0] * 16
    assert found["jobs_by_queue"] == {"a": 2, "b": 1}
    assert [gang["num_gpus"] for gang in found["gangs"]] == [1, 4, 8]
    assert found["offered_load"]["64"] == pytest.approx(61600 / 64 / 90001)
    digest = hashlib.sha256(PHILLY.encode()).hexdigest()
    assert found["provenance"]["inputs_sha256"] == {"philly": digest}
    shown = capsys.readouterr().out
    assert "left out: 1 rows, duration is zero (first: row 3 (line 4))" in shown
    assert "rejected_rows" in shown


def test_json_alone_reaches_standard_output(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done(work, "trace=itp.csv.gz", "trace.format=itp", "json=true")
    out, err = capfd.readouterr()
    assert json.loads(out)["jobs"] == 3
    assert "median duration" in err


@pytest.mark.parametrize("name", ["o.csv", "o.csv.gz", "o.parquet"])
def test_convert(name: str, work: Path) -> None:
    found = done(
        work, "action=convert", "trace=itp.csv.gz", "trace.format=itp", f"action.output={name}"
    )
    assert (found["jobs"], found["output"]) == (3, name)
    read = CanonicalReader().read(name)
    assert read.trace.job_id.tolist() == ["a", "b", "c"]
    assert read.trace.submit_s.tolist() == [0, 0, 4]
    if name == "o.parquet":
        assert read.origin_s == 5
        provenance: Any = read_frame(name, Path(name).read_bytes())[0]["provenance"]
    else:
        provenance = read_json(work / f"{name}.provenance.json")["provenance"]
    assert list(provenance["inputs_sha256"]) == ["itp"]
    assert found["sha256"] == hashlib.sha256((work / name).read_bytes()).hexdigest()


PARTS = {
    "trace.queue=a": ["0", "4"],
    "trace.max_gpus=4": ["0", "4"],
    "trace.start_s=1": ["1", "4"],
    "trace.end_s=3600": ["0"],
    "trace.window=train": ["0", "1"],
    "trace.window=test": ["4"],
    "trace.head=2": ["0", "1"],
    "trace.queue=b trace.head=1": ["1"],
}


@pytest.mark.parametrize("part", PARTS)
def test_parts(part: str, work: Path) -> None:
    options = ["trace=philly.csv", "trace.format=philly", "trace.strict=false"]
    done(work, "action=convert", *options, "action.output=o.parquet", *part.split())
    found = read_parquet("o.parquet")
    assert found.job_id.tolist() == PARTS[part]
    assert found.submit_s[0] == 0
    read = CanonicalReader().read("o.parquet")
    assert read.origin_s % 86400 == (7 if PARTS[part][0] != "0" else 6) * 3600 + (
        PARTS[part][0] == "4"
    )


def test_loads(work: Path) -> None:
    common = ["action=convert", "trace=itp.csv.gz", "trace.format=itp", "action.output=o.parquet"]
    done(work, *common, "trace.stretch=2.5")
    assert read_parquet("o.parquet").submit_s.tolist() == [0, 0, 10]
    done(work, *common, "trace.load=0.5", "trace.gpus=8")
    assert read_parquet("o.parquet").offered_load(8) == pytest.approx(0.5, rel=1e-3)


def test_synthesise(work: Path) -> None:
    common = [
        "action=synthesise",
        "trace.workload=philly",
        "trace.jobs=300",
        "trace.load=0.7",
        "trace.gpus=64",
    ]
    done(work, *common, "action.output=a.parquet", "seed=3")
    done(work, *common, "action.output=b.parquet", "trace.seed=3")
    done(work, *common, "action.output=c.parquet", "seed=4")
    first, same, other = (read_parquet(f"{name}.parquet") for name in "abc")
    assert len(first) == 300
    assert first.offered_load(64) == pytest.approx(0.7, rel=1e-3)
    assert first.duration_s.tolist() == same.duration_s.tolist()
    assert first.duration_s.tolist() != other.duration_s.tolist()
    found = done(
        work,
        "trace.format=synthetic",
        "trace.jobs=50",
        "trace.models=[x,y]",
        "action.picture=false",
    )
    assert found["jobs"] == 50


def test_fit(work: Path) -> None:
    common = ["trace.workload=philly", "trace.jobs=2000"]
    done(work, "action=synthesise", *common, "action.output=a.parquet")
    found = done(work, "action=fit", "trace.path=a.parquet", "action.output=ours.yaml")
    assert max(float(str(found[key])) for key in ("duration_ks", "interarrival_ks")) < 0.1
    assert float(str(found["gang_share"])) < 0.02
    alike = ["action=synthesise", "trace.workload=ours.yaml", "trace.jobs=500"]
    done(work, *alike, "action.output=b.parquet")
    assert read_parquet("b.parquet").name.startswith("fitted")


def test_download(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = ITP.encode()
    digest = hashlib.sha256(content).hexdigest()
    with serving(Served(content, breaks=[10])) as served:
        source = [
            "action=download",
            "action.source=openb",
            f"action.sources.openb.url={served.url}",
        ]
        unknown = ["action.sources.openb.git_blob=null", "action.sources.openb.sha256=null"]
        found = done(work, *source, "action.sources.openb.git_blob=null", f"action.sha256={digest}")
        assert (found["sha256"], found["checked"], found["fetched"]) == (digest, True, True)
        assert served.asked == [None, "bytes=10-"]
        path = Path(found["file"])
        assert path.read_bytes() == content
        origin = read_json(path.with_name(f"{path.name}.provenance.json"))
        assert (origin["url"], origin["sha256"]) == (served.url, digest)
        capsys.readouterr()
        found = done(work, *source, *unknown)
        assert (found["checked"], found["fetched"]) == (False, False)
        assert "NOT CHECKED" in capsys.readouterr().out
        path.unlink()
        assert run_job("trace", [*source, "hydra.run.dir=refused"]) == 2
        assert "SHA-256 is" in capsys.readouterr().err
        assert not path.exists()
    listed = done(work, "action=download")
    assert set(listed["sources"]) >= {"itp", "philly", "helios", "pai", "openb", "acme_seren"}
    assert "action.source=philly" in capsys.readouterr().out


def test_the_table_of_sources_names_known_formats() -> None:
    sources = yaml.safe_load((CONF / "action/download.yaml").read_text())["sources"]
    formats = yaml.safe_load((CONF / "trace/file.yaml").read_text())["formats"]
    for name, source in sources.items():
        assert source["format"] in formats or name == "openb_nodes"
        assert source["url"].startswith("https://")
        assert source.get("sha256") or source.get("git_blob")
        assert len(source["url"].split("/")[6 if "media." in source["url"] else 5]) == 40, (
            "a commit"
        )


def test_without_network_there_is_one_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Served(b"")) as served:
        closed = served.url
    command = ["action=download", "action.source=itp", f"action.sources.itp.url={closed}"]
    assert run_job("trace", [*command, "action.attempts=2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {closed}: cannot be downloaded")
    assert not (work / "traces").exists()
