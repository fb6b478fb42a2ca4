"""What is no file, or too large for the machine, is refused before it is read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from envs import memory
from envs.cluster.nodes import Cluster
from envs.cluster.workload.synthetic.generate import generate
from envs.files import read_content, write_atomically
from envs.hardware.builders import uniform
from envs.hardware.servers import PcieServer
from envs.memory import require_memory
from experiments.config.targets import yaml_document
from tests.refusal import refusal

PCIE = {"medium": "PCIe", "bandwidth": "12GB/s", "latency": "5us"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a megabyte."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 1e6)


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with refusal("is no regular file"):
            read_content(path)
    with refusal("Is a directory"):
        read_content(tmp_path)


@pytest.mark.usefixtures("small")
def test_what_is_larger_than_the_machine_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1_000_000))
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(40_000_000)))
    (tmp_path / "small.gz").write_bytes(gzip.compress(bytes(1000)))
    for name in ("large", "bomb.gz"):
        with refusal(r"would take about .* MB of memory.* has 1 MB"):
            read_content(tmp_path / name)
    assert read_content(tmp_path / "small.gz") == bytes(1000)


def test_absurd_sizes_are_refused_with_what_they_would_take() -> None:
    with refusal(r"'nodes': 2,000,000,000 nodes would take about 512 GB"):
        Cluster.uniform(2_000_000_000, 8)
    with refusal(r"'count': 100,000: .* 56 hours and 2e\+03 GB"):
        PcieServer("V100-16GB", 100_000, PCIE)
    with refusal(r"'devices': 8,193: a route between every pair"):
        uniform("many", PcieServer("V100-16GB", 1000, PCIE), 1000, PCIE)
    with refusal("'jobs': 1,000,000,000 jobs would take about 500 GB"):
        generate(None, 1_000_000_000, 0)  # type: ignore[arg-type]  # they are not looked at
    require_memory(1e3, "little")


def test_aliases_cannot_make_a_small_file_large(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 9)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with refusal("aliases make more than 1,000,000 nodes"):
        yaml_document(tmp_path / "bomb.yaml")


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with refusal("cannot be written"):
        write_atomically(tmp_path / "file" / "below", b"")


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to(os.devnull)
    for name in ("pipe", "folder", "null"):
        with refusal(rf"{name}: cannot be written"):
            write_atomically(tmp_path / name, b"")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "null", "pipe"]
