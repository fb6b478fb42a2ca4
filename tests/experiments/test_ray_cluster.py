"""What the grid on a Ray cluster sends and brings back, without Ray's own processes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from experiments.study import ray_cluster
from experiments.study.processes import Work
from experiments.study.ray_cluster import Ended, RayCluster, packed, run_here, unpack
from tests.refusal import refusal

pytestmark = pytest.mark.skipif(
    not hasattr(tarfile, "data_filter"), reason="archives need Python 3.11.4 or newer"
)
READS = (
    "import os, pathlib; here = pathlib.Path({0!r}); here.mkdir(exist_ok=True); "
    "(here / 'result.json').write_text((here.parent / 'first' / 'found').read_text()); "
    "print(os.environ['MESHWRIGHT_DATA'], os.environ.get('RAY_JOB_ID'))"
)


def work(folder: Path) -> Work:
    cell, first = folder / "second", folder / "first"
    return Work(("-c", READS.format(str(cell))), cell, folder / "second.log", (first,))


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.delenv("MESHWRIGHT_DATA", raising=False)
    monkeypatch.setattr(ray_cluster.ray, "get", lambda files: files)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "found").write_text("42")
    return tmp_path


def test_where_the_run_folder_is_seen_nothing_is_sent(prepared: Path) -> None:
    asked = work(prepared)
    asked.lock.write_text("token")
    ended = Ended(*run_here(asked, [], "token", {"MESHWRIGHT_DATA": "there"}, str(prepared)))
    assert ended == (0, b"", None)
    assert (prepared / "second" / "result.json").read_text() == "42"
    assert asked.log.read_text() == "there None\n"


def test_where_it_is_not_seen_all_comes_back_and_nothing_stays(prepared: Path) -> None:
    asked = work(prepared)
    archive = packed(prepared / "first")
    (prepared / "first" / "found").unlink()
    (prepared / "first").rmdir()
    driver = {"MESHWRIGHT_DATA": "there"}
    ended = Ended(*run_here(asked, [archive], "token", driver, "/no such folder"))
    assert (ended.code, ended.said) == (0, b"there None\n")
    assert list(prepared.iterdir()) == []
    assert ended.files is not None
    unpack(ended.files, prepared / "second")
    assert (prepared / "second" / "result.json").read_text() == "42"


def test_an_archive_lays_nothing_out_beside_its_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(buffer.getvalue(), tmp_path / "inside")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cpus": 8}, r"cpus': no machine of the cluster has 8 CPUs, but 2 at most"),
        ({"gpus": 1}, r"gpus': no machine of the cluster has 1 GPUs, but 0 at most"),
        ({"workers": 0}, "workers"),
    ],
)
def test_a_run_that_no_machine_can_take_is_refused(
    asked: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would have it wait for ever."""
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8}}]
    monkeypatch.setattr(ray_cluster, "connect", lambda address: None)
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: nodes)
    given: dict[str, Any] = {"address": None, "workers": 1, "cpus": 1, "gpus": 0, "shared": None}
    with refusal(message):
        RayCluster(**{**given, **asked})
