"""Measured profiles are taken as they stand; what was not measured is an error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from envs.cost.profiled import ProfiledCost
from envs.cost.roofline import RooflineCost
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph
from envs.hardware.builders import mixed
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology

LINK = {"medium": "wire", "bandwidth": "1GB/s", "latency": "1us"}


def graph() -> OpGraph:
    builder = GraphBuilder("g")
    a, b = builder.add_operator("a", flop=1.0), builder.add_operator("b", flop=1.0)
    builder.add_use(builder.add_tensor(a, 100.0), b)
    return builder.build()


def topology() -> Topology:
    return mixed("t", [PcieServer("T4", 2, LINK), PcieServer("A10", 1, LINK)], LINK)


def profile(tmp_path: Path, content: object) -> ProfiledCost:
    path = tmp_path / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return ProfiledCost(path)


def test_measured_seconds_stand_by_operator_and_device_kind(tmp_path: Path) -> None:
    cost = profile(
        tmp_path, {"b": {"T4": 2.0, "A10": 0.5}, "a": {"T4": 1, "A10": 0}, "other": {"H100": 9}}
    )
    assert cost.operator_seconds(graph(), topology()).tolist() == [[1, 1, 0], [2, 2, 0.5]]


def test_transfers_are_those_of_the_roofline(tmp_path: Path) -> None:
    np.testing.assert_array_equal(
        profile(tmp_path, {}).transfer_seconds(graph(), topology()),
        RooflineCost().transfer_seconds(graph(), topology()),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": {"T4": 1, "A10": 1}}, "record b: operator is not in the profile"),
        (
            {"a": {"T4": 1}, "b": {"T4": 1, "A10": 1}},
            "record a: field 'A10': was not measured on this device",
        ),
        ({"a": {"T4": 1, "A10": -1}}, "record a: field 'A10': -1 is negative"),
        ({"a": {"T4": 1, "A10": "1"}}, "record a: field 'A10': '1' is no number"),
        ('{"a": {"T4": 1, "A10": NaN}}', "record a: field 'A10': nan is negative or not finite"),
        ([], "is no object of operators"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_a_bad_profile_is_refused_by_operator_and_device(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        profile(tmp_path, content).operator_seconds(graph(), topology())
    assert "profile.json" in str(caught.value)


def test_a_profile_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.json"):
        ProfiledCost(tmp_path / "missing.json").operator_seconds(graph(), topology())
