"""Bounds that stand in annotations are held, and told in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen

from envs.bounds import Count, NonNegative, Positive, Share, bounded
from tests.refusal import refusal


@bounded
@dataclass(frozen=True)
class Recipe:
    seconds: Positive = 1.0
    patience: NonNegative = 0.0
    share: Share = 0.5
    rounds: Count = 1
    gap: Annotated[float, Ge(0.0), Lt(1.0)] = 0.0
    level: Annotated[int, Le(9)] = 0
    heat: Annotated[float, Gt(2.0)] = 3.0
    groups: Annotated[Sequence[Count], MinLen(1)] = (4, 8)
    weights: Mapping[str, NonNegative] | None = None
    limit: Positive | None = None


class Planner:
    @bounded
    def __init__(self, budget_s: Positive) -> None:
        self.budget_s = budget_s


@bounded
def rescaled(load: Positive) -> float:
    return load


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("seconds", 0.0, "0.0 is not positive and finite"),
        ("seconds", math.inf, "inf is not positive and finite"),
        ("seconds", math.nan, "nan is not positive and finite"),
        ("patience", -1.0, "-1.0 is negative or not finite"),
        ("share", 1.5, "1.5 is not between 0 and 1"),
        ("rounds", 0, "0 is below 1"),
        ("gap", 1.0, "1.0 is not in [0, 1)"),
        ("level", 10, "10 is above 9"),
        ("heat", 2.0, "2.0 is not above 2"),
        ("groups", (4, 0), "0 is below 1"),
        ("groups", (), "() is too short"),
        ("limit", -2.0, "-2.0 is not positive and finite"),
        ("rounds", np.int64(0), "0 is below 1"),
        ("rounds", False, "False is below 1"),
        ("rounds", None, "None is below 1"),
        ("groups", np.array([4, 0]), "0 is below 1"),
    ],
)
def test_what_is_out_of_bounds_is_told_in_one_line(field: str, value: Any, said: str) -> None:
    with refusal() as caught:
        Recipe(**{field: value})
    assert str(caught.value) == f"field '{field}': {said}"


def test_a_value_of_a_mapping_is_named_with_its_key() -> None:
    with refusal(r"^field 'weights.jct': -1 is negative or not finite$"):
        Recipe(weights={"jct": -1})


def test_what_is_in_bounds_is_built() -> None:
    recipe = Recipe(2.0, groups=[1], weights={"jct": 0.0}, limit=None)
    assert (recipe.seconds, recipe.groups, recipe.weights) == (2.0, [1], {"jct": 0.0})


@pytest.mark.parametrize("make", [Planner, rescaled])
def test_constructors_and_functions_are_bounded_too(make: Callable[[float], object]) -> None:
    make(1.0)
    with refusal("is not positive and finite"):
        make(0.0)


def test_a_call_with_wrong_arguments_is_still_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        Recipe(speed=1.0)  # type: ignore[call-arg]
