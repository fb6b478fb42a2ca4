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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def fetch(
    served: Served, path: Path, sha256: str | None = SHA256, git: str | None = None,
    attempts: int = 1,
) -> bool:  # fmt: skip
    download = Download(served.url, path, sha256, git, attempts, 5.0)
    return download.run(lambda done, total: None)


def files(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir())


@pytest.mark.parametrize("hashes", [(SHA256, None), (None, BLOB), (SHA256, BLOB), (None, None)])
def test_a_file_arrives_once(hashes: tuple[str | None, str | None], path: Path) -> None:
    path = path.parent / "sub" / path.name
    with serving(Served(CONTENT)) as served:
        assert fetch(served, path, *hashes)
        assert not fetch(served, path, *hashes)
    assert path.read_bytes() == CONTENT
    assert files(path) == ["data.csv"]
    assert served.asked == [None]


def test_a_broken_transfer_is_taken_up(path: Path) -> None:
    with serving(Served(CONTENT, breaks=[1_200_000])) as served:
        with refusal(r"1200000 bytes are kept in data.csv.part"):
            fetch(served, path)
        assert files(path) == ["data.csv.part"]
        assert fetch(served, path)
    assert path.read_bytes() == CONTENT
    assert files(path) == ["data.csv"]
    assert served.asked == [None, "bytes=1200000-"]


FROM = "bytes=1500000-"


@pytest.mark.parametrize(
    ("served", "attempts", "asked"),
    [
        (Served(CONTENT, breaks=[1_000_000, 500_000, 0]), 4, [None, "bytes=1000000-", FROM, FROM]),
        (Served(CONTENT, ranges=False, breaks=[1_000_000]), 2, [None, "bytes=1000000-"]),
        (Served(CONTENT, sized=False), 1, [None]),
    ],
)
def test_several_attempts_in_one_run_with_ranges_or_without_or_no_length(
    served: Served, attempts: int, asked: list[str | None], path: Path
) -> None:
    with serving(served):
        assert fetch(served, path, attempts=attempts)
    assert path.read_bytes() == CONTENT
    assert served.asked == asked


@pytest.mark.parametrize("part", [CONTENT, b"something else"])
def test_a_part_that_is_whole_needs_no_byte_and_one_of_something_else_is_given_up(
    part: bytes, path: Path
) -> None:
    path.with_name("data.csv.part").write_bytes(part)
    with serving(Served(CONTENT)) as served:
        assert fetch(served, path, attempts=2)
    assert path.read_bytes() == CONTENT
    assert served.asked == [f"bytes={len(part)}-", None][: 1 + (part != CONTENT)]


def test_without_a_hash_no_part_of_another_version_is_kept(path: Path) -> None:
    with serving(Served(CONTENT, breaks=[1_000_000])) as served:
        with refusal():
            fetch(served, path, None)
        served.content = CONTENT[::-1]
        assert fetch(served, path, None)
    assert path.read_bytes() == CONTENT[::-1]
    assert served.asked == [None, None]


def test_another_content_is_no_success(path: Path) -> None:
    for sha256, git in (("0" * 64, None), (None, "0" * 40), (SHA256, "0" * 40)):
        with serving(Served(CONTENT)) as served, refusal("not 0000"):
            fetch(served, path, sha256, git)
        assert files(path) == []
    with serving(Served(CONTENT, sized=False, breaks=[5])) as served:
        with refusal("SHA-256"):
            fetch(served, path)
        fetch(served, path)
        with refusal(r"data.csv: SHA-256 is"):  # what is there is left
            fetch(served, path, "0" * 64)
    assert files(path) == ["data.csv"]


def test_a_part_longer_than_the_file_is_given_up(path: Path) -> None:
    with serving(Served(CONTENT, breaks=[2_000_000])) as served:
        with refusal():
            fetch(served, path)
        served.content = CONTENT[:1_000_000]
        assert fetch(served, path, hashlib.sha256(served.content).hexdigest(), attempts=2)
    assert path.read_bytes() == CONTENT[:1_000_000]


def test_refusals_and_silence(path: Path) -> None:
    with serving(Served(CONTENT, status=404)) as served:
        with refusal("answers 404"):
            fetch(served, path, attempts=3)
        assert len(served.asked) == 1
    with refusal(r"cannot be downloaded .*refused"):
        fetch(served, path)
    http = "http://127.0.0.1/x"
    for url, sha256, git, words in (
        ("file:///etc/hostname", None, None, "no address"),
        ("ftp://127.0.0.1/x", None, None, "no address"),
        ("data.csv", None, None, "no address"),
        (http, "abc", None, "hexadecimal"),
        (http, None, "A" * 40, "hexadecimal"),
    ):
        with refusal(words):
            Download(url, path, sha256, git, 1, 1.0)
    assert files(path) == []


def test_git_blob_is_git_s_own(path: Path) -> None:
    path.write_bytes(CONTENT)
    command = ["git", "hash-object", "--no-filters", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert git_blob(path) == said.strip() == BLOB


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
