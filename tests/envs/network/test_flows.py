"""Flow sets: their checks, and flows between the devices of a network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.errors import InputError
from envs.network.flows import flow_set, flows_between
from experiments.step.problem import topology_file
from tests.paths import CONF


def test_flows_between_devices_run_over_all_their_planes() -> None:
    network = topology_file(CONF / "topology" / "planes_4x1.yaml").network
    flows = flows_between(network, [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0, 3, 1], [1, 0, 2])
    assert flows.path_ptr.tolist() == [0, 2, 4, 6]
    for flow, (source, destination) in enumerate([(0, 1), (3, 0), (1, 2)]):
        pair = source * network.num_devices + destination
        for way in range(2):
            path = network.pair_ptr[pair] + way
            own = flows.path_ptr[flow] + way
            np.testing.assert_array_equal(
                flows.path_links[flows.link_ptr[own] : flows.link_ptr[own + 1]],
                network.path_links[network.path_ptr[path] : network.path_ptr[path + 1]],
            )
    with pytest.raises(InputError, match="flow 0: field 'destination': 4 is none of 4 devices"):
        flows_between(network, [0.0], [1.0], [0], [4])
    with pytest.raises(InputError, match="flow 0: device 2 has no path to device 2"):
        flows_between(network, [0.0], [1.0], [2], [2])


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("arrival", [0.0, np.nan], "flow 1: field 'arrival': nan is not finite"),
        ("volume", [1.0, -1.0], "flow 1: field 'volume': -1.0 is negative"),
        ("weight", [-2.0, 1.0], "flow 0: field 'weight': -2.0 is negative"),
        ("latency", [0.0, np.inf], "flow 1: field 'latency': inf is not finite"),
        ("limit", [0.0, np.nan], "flow 1: field 'limit': nan is not a rate"),
        ("volume", [1.0], "field 'volume': is not one value for each of 2 flows"),
        ("path_ptr", [0, 0, 2], "flow 0: field 'path_ptr': has no path"),
        ("path_ptr", [0, 1], "field 'path_ptr': does not divide 2 entries into 2 rows"),
        ("link_ptr", [0, 2, 1], "field 'link_ptr': does not divide 3 entries into 2 rows"),
        ("path_links", [0, 1, 1], "flow 1: field 'path_links': crosses link 1 twice"),
    ],
)
def test_a_wrong_column_is_refused_by_name(column: str, value: list[float], words: str) -> None:
    good = flow_set([0.0, 0.0], [1.0, 1.0], [[[0]], [[0, 1]]])
    with pytest.raises(InputError, match=words):
        replace(good, **{column: np.array(value, dtype=getattr(good, column).dtype)})


def test_flows_and_paths_must_be_as_many() -> None:
    with pytest.raises(InputError, match="field 'paths': is not one list for each of 2 flows"):
        flow_set([0.0, 0.0], [1.0, 1.0], [[[0]]])
