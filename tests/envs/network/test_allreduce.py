"""All-reduces beside the measured ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.network.allreduce import LINKS, Link, allreduce_seconds
from envs.text_table import read_table
from tests.refusal import refusal


@pytest.mark.parametrize(
    ("table", "link", "median", "most"),
    [("a100", "NVLink 3", 0.015, 0.03), ("v100", "NVLink 2 mesh", 0.012, 0.05)],
)
def test_the_measured_all_reduces(
    data: Path, table: str, link: str, median: float, most: float
) -> None:
    """Median error of all rows, and of those of every number of devices."""
    read = read_table(data / "measured" / f"allreduce_{table}.csv.gz")
    devices, size, seconds = (
        read.columns[name].cast(float).to_numpy() for name in ("gpus", "bytes", "out_of_place_s")
    )
    found = np.zeros_like(seconds)
    for count in np.unique(devices):
        rows = devices == count
        found[rows] = allreduce_seconds(size[rows], int(count), link)
    error = np.abs(found / seconds - 1.0)
    assert np.median(error) < median
    for count in np.unique(devices):
        assert np.median(error[devices == count]) < most


def test_alone_nothing_is_sent() -> None:
    assert allreduce_seconds(1e9, 1, "PCIe 3") == 0.0


@pytest.mark.parametrize("link", LINKS)
def test_more_bytes_and_more_devices_take_longer(link: str) -> None:
    size = np.array([0.0, 1e3, 1e6, 1e9])
    assert np.all(np.diff(allreduce_seconds(size, 4, link)) > 0)
    if "mesh" not in link:
        assert np.all(allreduce_seconds(size, 8, link) > allreduce_seconds(size, 4, link))


def test_a_link_of_ones_own() -> None:
    link = Link(10e9, latency_s=1e-5, hop_s=1e-6, own=0.0)
    assert allreduce_seconds(4e9, 4, link) == pytest.approx(1.3e-5 + 0.6)


def test_what_is_refused() -> None:
    with refusal("NVLink 9"):
        allreduce_seconds(1.0, 2, "NVLink 9")
    with refusal("0 of them"):
        allreduce_seconds(1.0, 0, "PCIe 3")
