"""Routes on a parking lot."""

from __future__ import annotations

import numpy as np

from envs.network.parking_lot import ParkingLot


def test_routes_go_up_and_down_the_row() -> None:
    """Four hosts: links from the hosts 0-3, to the hosts 4-7, up the row 8-10, down it 11-13."""
    network = ParkingLot(4, 1.25)
    assert network.capacity.tolist() == [1.25] * 14
    pairs = np.array([(0, 3), (2, 1), (3, 0), (1, 2)])
    ptr, links = network.routes(pairs[:, 0], pairs[:, 1])
    rows = [links[ptr[f] : ptr[f + 1]].tolist() for f in range(4)]
    assert rows == [[0, 8, 9, 10, 7], [2, 12, 5], [3, 13, 12, 11, 4], [1, 9, 6]]


def test_no_flows_have_no_links() -> None:
    none = np.zeros(0, dtype=np.int64)
    ptr, links = ParkingLot(2, 1.0).routes(none, none)
    assert ptr.tolist() == [0]
    assert len(links) == 0
