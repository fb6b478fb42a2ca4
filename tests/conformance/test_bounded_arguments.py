"""Every number that a bounded class takes has bounds; what is beyond them is refused by name."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from math import nan
from typing import Annotated, Any, Literal

import pytest
from annotated_types import BaseMetadata, Ge, Le, MinLen

from envs.bounds import bounds_of
from tests.paths import ROOT
from tests.refusal import refusal

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for floor in ("envs", "models", "agents")
    for path in sorted((ROOT / floor).rglob("*.py"))
    if "@bounded\n" in path.read_text()
]
# Numbers of any size, and those that are held against each other where they are used.
FREE = {
    "ClusterObservation": "peers", "ContiguousDP": "groups", "DrawnJointProblems": "sweeps",
    "Curriculum": "first_load load first_gpus gpus", "DrawnProblems": "sweeps",
    "FusionMilp": "levels", "Gittins": "limits", "LabelledProblems": "sweeps",
    "HierarchicalConfig": "initial_index_weight initial_speed_weight initial_expert_weight",
    "MixedClusters": "jobs_per_gpu speeds", "MixtureOfExpertsConfig": "balance_weight",
    "OneProblem": "max_groups sweeps", "OnnxReader": "dims", "PaddedGraphLayout": "low high",
    "PartitionSearch": "warm", "PipeDreamReader": "devices memory_bytes bandwidth",
    "PipesConfig": "initial_root", "RandomPlacement": "groups", "TrainingRun": "layers_per_stage",
    "SharedHosts": "turns core_input uplink", "SharedPlacement": "kick_groups gap at_once",
    "TabulatedRates": "profiles scope",
}  # fmt: skip


def is_free(hint: Any) -> bool:
    """Whether an annotation has a number without bounds."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and any(isinstance(bound, BaseMetadata) for bound in inner[1:]):
        return False
    return hint in (int, float) or (origin not in (Literal, Callable) and any(map(is_free, inner)))


def beyond(bound: Any) -> list[Any]:
    """What breaks a bound."""
    if isinstance(bound, MinLen):
        return [()]
    limit = getattr(bound, type(bound).__name__.lower())
    return [nan, limit - isinstance(bound, Ge) + isinstance(bound, Le)]


def wrong(hint: Any) -> Iterator[Any]:
    """Values of which one number breaks one bound of an annotation, and a text that it has not."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        yield "no such"
    elif origin is Annotated:
        for bound in inner[1:]:
            yield from beyond(bound) if isinstance(bound, BaseMetadata) else ()
        yield from wrong(inner[0])
    elif inspect.isclass(origin) and issubclass(origin, Mapping):
        yield from ({"key": value} for value in wrong(inner[1]))
    elif inspect.isclass(origin) and issubclass(origin, Sequence):
        yield from ([value] for value in wrong(inner[0]))
    elif origin is not Callable:
        for one in inner:
            yield from wrong(one)


def bounded_in(module: str) -> Iterator[Any]:
    """Its classes and functions that hold their arguments against bounds."""
    for one in vars(import_module(module)).values():
        own = vars(one).get("__init__") if inspect.isclass(one) else one
        if inspect.isfunction(own) and hasattr(own, "__wrapped__") and one.__module__ == module:
            yield one


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_a_number_beyond_its_bounds_is_refused_by_name(module: str) -> None:
    for kind in bounded_in(module):
        hints, parameters = bounds_of(kind), inspect.signature(kind).parameters
        needed = {x: object() for x, one in parameters.items() if one.default is one.empty}
        for name in parameters.keys() & hints.keys():
            bound = not is_free(hints[name]) or name == "seed" or inspect.isfunction(kind)
            assert bound or name in FREE.get(kind.__name__, "").split(), name
            for value in wrong(hints[name]):
                with refusal() as caught:
                    kind(**{**needed, name: value})
                assert str(caught.value.field).partition(".")[0] == name
