from __future__ import annotations

import copy
from typing import Any

import pytest
from shipped_workloads import document

from envs.cluster.workload.synthetic.parameters import workload_parameters
from envs.errors import InputError


@pytest.mark.parametrize("name", ["itp", "philly"])
def test_a_document_is_itself_again(name: str) -> None:
    parameters = workload_parameters(**document(name))
    assert workload_parameters(**parameters.document()).document() == parameters.document()
    assert parameters.name == name


def spoiled(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(document())
    node: Any = found
    for key in path[:-1]:
        node = node[key]
    if value is None:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("pause",), None, "pause"),
        (("colour",), 1, "colour"),
        (("pause", "quantile"), None, "quantile"),
        (("pause",), [1, 2], "pause"),
        (("gap_memory", "strength"), 1.5, "strength"),
        (("gang_shares", 0), 0.2, "gang_shares"),
        (("gang_shares",), [1.0], "gang_shares"),
        (("gang_sizes", 1), 1, "gang_sizes"),
        (("durations", 0, "num_gpus"), [3], "durations"),
        (("durations", 2, "num_gpus"), None, "durations[2]"),
        (("sessions", "length", 0), 0.5, "length"),
        (("sessions", "gap_before"), [0.5], "gap_before"),
        (("sessions", "gap_within", 2), float("nan"), "gap_within"),
        (("sessions", "gap_within"), None, "gap_within"),
        (("sessions",), 3, "sessions"),
        (("burst_share",), 2, "burst_share"),
        (("jobs",), "many", "many"),
        (("daily", 3), "noon", "noon"),
    ],
)
def test_a_wrong_entry_is_named(path: tuple[Any, ...], value: Any, named: str) -> None:
    with pytest.raises(InputError) as caught:
        workload_parameters(**spoiled(path, value))
    assert named in str(caught.value)
