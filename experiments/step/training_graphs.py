"""Training steps of real models to learn placement from: captured once, contracted, cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

from envs.cost import RooflineCost
from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.graphs.zoo import cached_graph, zoo_graph
from envs.graphs.zoo_models import ZOO
from envs.hardware.builders import mixed, single_server
from envs.hardware.devices import CATALOGUE
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.step.fusion import fuse
from envs.step.problem import StepProblem
from experiments.run.provenance import file_hash

_PCIE = {"medium": "PCIe 3.0 x16", "bandwidth": "15.75GB/s", "latency": "2us"}
_VERSION = 1  # raised with every change of what contracting gives


@dataclass(frozen=True)
class TrainingGraphs(Sequence[OpGraph]):
    """Captured training steps, contracted to groups, with seconds on every kind of device.

    Each is read, or captured and contracted, when it is first asked for.

    Args:
        models: of each, `name` of a model of the zoo or of `experiments.step.suites.models`, and
            the arguments it takes: batch, micro_batches, sequence.
        groups: groups that each is contracted to, at most.

    Raises:
        InputError: an entry is no mapping with a name.
    """

    models: Sequence[Mapping[str, Any]]
    groups: int

    def __post_init__(self) -> None:
        for number, model in enumerate(self.models):
            if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
                told = "is no mapping with the name of a model"
                raise InputError(told, record=f"model {number}", field="captured.models")

    def __len__(self) -> int:
        return len(self.models)

    @overload
    def __getitem__(self, index: int) -> OpGraph: ...
    @overload
    def __getitem__(self, index: slice) -> list[OpGraph]: ...
    def __getitem__(self, index: int | slice) -> OpGraph | list[OpGraph]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return _contracted(tuple(sorted(self.models[index].items())), self.groups)


@lru_cache(maxsize=64)
def _contracted(items: tuple[tuple[str, Any], ...], groups: int) -> OpGraph:
    model = dict(items)
    key = {"training": model, "groups": groups, "version": _VERSION}
    if model["name"] not in ZOO:
        key["source"] = file_hash(Path(__file__).parent / "suites" / "models.py")

    def build() -> OpGraph:
        graph = _captured(**model)
        kinds = tuple(CATALOGUE)
        profiled = replace(
            graph,
            profile_classes=kinds,
            profile_seconds=RooflineCost().operator_seconds(graph, _one_of_each()),
        )
        reference = single_server("reference", PcieServer("V100-16GB", 2, _PCIE))
        problem = StepProblem.build(profiled, reference, RooflineCost())
        return fuse(problem, groups).graph

    return cached_graph(key, build)


def _captured(name: str, **shape: Any) -> OpGraph:
    if name in ZOO:
        return zoo_graph(name, **shape)
    from experiments.step.suites.models import Captured

    return Captured(name, **shape).load().graph


def _one_of_each() -> Topology:
    servers = [PcieServer(kind, 1, _PCIE) for kind in CATALOGUE]
    return mixed("one of each kind", servers, _PCIE)
