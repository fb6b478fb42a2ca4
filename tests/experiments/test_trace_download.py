"""Downloads that break off, go on, and are checked, from a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from file_server import Served, serving
from omegaconf import OmegaConf

from experiments.cluster.trace_download import Download, git_blob, lay_out
from experiments.run.provenance import content_hash
from tests.paths import ROOT
from tests.refusal import refusal

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
BLOB = hashlib.sha1(b"blob 3000000\0" + CONTENT).hexdigest()


def fetch(
    served: Served,
    folder: Path,
    sha256: str | None = SHA256,
    git: str | None = None,
    attempts: int = 1,
) -> bool:
    download = Download(served.url, folder / "sub" / "data.csv", sha256, git, attempts, 5.0)
    return download.run(lambda done, total: None)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("hashes", [(SHA256, None), (None, BLOB), (SHA256, BLOB), (None, None)])
def test_a_file_arrives_once(hashes: tuple[str | None, str | None], tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as served:
        assert fetch(served, tmp_path, *hashes)
        assert not fetch(served, tmp_path, *hashes)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT
    assert files(tmp_path) == ["data.csv"]
    assert served.asked == [None]


def test_a_broken_transfer_is_taken_up(tmp_path: Path) -> None:
    with serving(Served(CONTENT, breaks=[1_200_000])) as served:
        with refusal(r"1200000 bytes are kept in data.csv.part"):
            fetch(served, tmp_path)
        assert files(tmp_path) == ["data.csv.part"]
        assert fetch(served, tmp_path)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT
    assert files(tmp_path) == ["data.csv"]
    assert served.asked == [None, "bytes=1200000-"]


def test_several_attempts_in_one_run(tmp_path: Path) -> None:
    with serving(Served(CONTENT, breaks=[1_000_000, 500_000, 0])) as served:
        assert fetch(served, tmp_path, attempts=4)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT
    assert served.asked == [None, "bytes=1000000-", "bytes=1500000-", "bytes=1500000-"]


def test_a_server_without_ranges_starts_again(tmp_path: Path) -> None:
    with serving(Served(CONTENT, ranges=False, breaks=[1_000_000])) as served:
        assert fetch(served, tmp_path, attempts=2)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT


def test_without_a_hash_no_part_of_another_version_is_kept(tmp_path: Path) -> None:
    with serving(Served(CONTENT, breaks=[1_000_000])) as served:
        with refusal():
            fetch(served, tmp_path, None)
        served.content = CONTENT[::-1]
        assert fetch(served, tmp_path, None)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT[::-1]
    assert served.asked == [None, None]


def test_another_content_is_no_success(tmp_path: Path) -> None:
    for sha256, git in (("0" * 64, None), (None, "0" * 40), (SHA256, "0" * 40)):
        with serving(Served(CONTENT)) as served, refusal("not 0000"):
            fetch(served, tmp_path, sha256, git)
        assert files(tmp_path) == []
    with serving(Served(CONTENT)) as served:
        fetch(served, tmp_path)
        with refusal(r"data.csv: SHA-256 is"):  # what is there is left
            fetch(served, tmp_path, "0" * 64)
    assert files(tmp_path) == ["data.csv"]


def test_a_part_longer_than_the_file_is_given_up(tmp_path: Path) -> None:
    with serving(Served(CONTENT, breaks=[2_000_000])) as served:
        with refusal():
            fetch(served, tmp_path)
        served.content = CONTENT[:1_000_000]
        sha256 = hashlib.sha256(served.content).hexdigest()
        assert fetch(served, tmp_path, sha256, attempts=2)
    assert (tmp_path / "sub/data.csv").read_bytes() == CONTENT[:1_000_000]


def test_a_part_that_is_whole_needs_no_byte(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as served:
        path = tmp_path / "sub" / "data.csv"
        path.parent.mkdir()
        path.with_name("data.csv.part").write_bytes(CONTENT)
        assert fetch(served, tmp_path)
    assert path.read_bytes() == CONTENT
    assert served.asked == [f"bytes={len(CONTENT)}-"]


def test_a_part_of_something_else_is_given_up(tmp_path: Path) -> None:
    with serving(Served(CONTENT)) as served:
        path = tmp_path / "sub" / "data.csv"
        path.parent.mkdir()
        path.with_name("data.csv.part").write_bytes(b"something else")
        assert fetch(served, tmp_path, attempts=2)
    assert served.asked == ["bytes=14-", None]


def test_a_server_that_tells_no_length(tmp_path: Path) -> None:
    with serving(Served(CONTENT, sized=False)) as served:
        assert fetch(served, tmp_path)
    with serving(Served(CONTENT, sized=False, breaks=[5])) as served:
        (tmp_path / "sub/data.csv").unlink()
        with refusal("SHA-256"):
            fetch(served, tmp_path)


def test_refusals_and_silence(tmp_path: Path) -> None:
    with serving(Served(CONTENT, status=404)) as served:
        with refusal("answers 404"):
            fetch(served, tmp_path, attempts=3)
        assert len(served.asked) == 1
    with refusal(r"cannot be downloaded .*refused"):
        fetch(served, tmp_path)
    for url in ("file:///etc/hostname", "ftp://127.0.0.1/x", "data.csv"):
        with refusal("no address"):
            Download(url, tmp_path / "x", None, None, 1, 1.0)
    for hashes in (("abc", None), (None, "A" * 40)):
        with refusal("hexadecimal"):
            Download("http://127.0.0.1/x", tmp_path / "x", *hashes, 1, 1.0)
    assert files(tmp_path) == []


def test_git_blob_is_git_s_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    command = ["git", "hash-object", "--no-filters", str(path)]
    assert (
        git_blob(path)
        == subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
    assert git_blob(path) == BLOB


def test_an_archive_is_laid_out_where_splits_look_whoever_compressed_it(tmp_path: Path) -> None:
    rows = b"job_id,submission_time,duration,num_gpu\na,0,600,1\n"
    archive = tmp_path / "raw.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        entry = tarfile.TarInfo("cluster01.csv")
        entry.size = len(rows)
        made.addfile(entry, io.BytesIO(rows))
    places = {"cluster01.csv": "traces/itp/cluster01.csv.gz"}
    (found,) = lay_out(archive, places, tmp_path)
    assert found == tmp_path / "traces/itp/cluster01.csv.gz"
    assert gzip.decompress(found.read_bytes()) == rows
    assert content_hash(found) == hashlib.sha256(rows).hexdigest()
    assert list(lay_out(archive, places, tmp_path)) == [found]
    found.write_bytes(gzip.compress(b"something of the user's own"))
    with refusal(r"is there, and not what raw\.tar\.gz has"):
        list(lay_out(archive, places, tmp_path))
    assert gzip.decompress(found.read_bytes()) == b"something of the user's own"
    found.unlink()
    with refusal(r"record cluster02.csv: is not in the archive"):
        list(lay_out(archive, {"cluster02.csv": "x.gz"}, tmp_path))
    archive.write_bytes(archive.read_bytes()[:60])
    with refusal("is damaged"):
        list(lay_out(archive, places, tmp_path))


def test_every_file_of_the_itp_split_is_laid_out_by_its_download() -> None:
    sources = OmegaConf.load(ROOT / "conf/action/download.yaml").sources
    wanted = OmegaConf.load(ROOT / "conf/split/itp.yaml").inputs
    assert set(wanted) <= set(sources.itp.members.values())
