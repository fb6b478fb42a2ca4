"""Framing: what of a link's rate reaches the kernel and a program."""

from __future__ import annotations

import pytest

from agents.bandwidth.enforcement.hosts import Framing
from envs.errors import InputError


def test_full_segments_of_a_usual_mtu_carry_1448_of_1514_bytes() -> None:
    framing = Framing(mtu=1500, line_overhead=0)
    assert framing.kernel_rate(1514.0) == 1514.0
    assert framing.payload_rate(1514.0) == pytest.approx(1448.0)
    assert framing.payload_rate(1.0455801104972375e9) == pytest.approx(1e9, rel=1e-15)


def test_ethernet_carries_24_bytes_more_than_the_kernel_counts() -> None:
    framing = Framing(mtu=9000, line_overhead=24)
    assert framing.kernel_rate(9038.0) == pytest.approx(9014.0)
    assert framing.payload_rate(9038.0) == pytest.approx(8948.0)


@pytest.mark.parametrize(
    ("rate", "bits"), [(0.0, 0), (0.99, 0), (1.0, 8), (1.99, 8), (3.125e9, 25_000_000_000)]
)
def test_queues_get_whole_bytes_rounded_down(rate: float, bits: int) -> None:
    assert Framing(1500, 0).kernel_bits(rate) == bits


@pytest.mark.parametrize(
    ("mtu", "overhead", "field"),
    [(575, 0, "mtu"), (65_536, 0, "mtu"), (1500, -1, "line_overhead"), (1500, 1001, "line_o")],
)
def test_what_no_link_has_is_refused(mtu: int, overhead: int, field: str) -> None:
    with pytest.raises(InputError, match=field):
        Framing(mtu, overhead)
