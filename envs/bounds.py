"""Bounds on arguments, declared with annotated-types where the argument stands.

    @bounded
    @dataclass(frozen=True)
    class Overheads:
        restart_s: NonNegative
        rounds: Annotated[int, Ge(1)]

pydantic would check them too, but copies arrays and answers in several lines.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Annotated, Any, TypeVar

import numpy as np
from annotated_types import BaseMetadata, Ge, Gt, Le, Lt, MinLen

from envs.errors import InputError, require_one_of

Target = TypeVar("Target", bound=Callable[..., Any])

Positive = Annotated[float, Gt(0.0), Lt(math.inf)]
NonNegative = Annotated[float, Ge(0.0), Lt(math.inf)]
Share = Annotated[float, Ge(0.0), Le(1.0)]
Count = Annotated[int, Ge(1)]


def bounded(target: Target) -> Target:
    """A class or a function whose arguments are held against the bounds in their annotations.

    The bounds are `Gt`, `Ge`, `Lt`, `Le` and `MinLen`. They hold for the argument, unless it is
    None and may be, and for every item of a sequence or an array and every value of a mapping,
    whose keys are texts where they say so.

    Raises:
        InputError: by what is returned: an argument is out of bounds; `field` names it.
    """
    owner: Any = target
    inner = owner.__init__ if inspect.isclass(target) else owner
    signature = inspect.signature(inner)
    hints: dict[str, Any] = {}

    @functools.wraps(inner)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not hints:
            hints.update(bounds_of(target))
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return inner(*args, **kwargs)  # which says what is wrong with the call
        for name, hint in hints.items():
            if name in given:
                check_bounds(given[name], hint, name)
        return inner(*args, **kwargs)

    if inspect.isclass(target):
        owner.__init__ = checked
        return target
    return typing.cast(Target, checked)


def bounds_of(target: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a callable's arguments, with their bounds."""
    owner: Any = target
    inner = owner.__init__ if inspect.isclass(target) else owner
    record = inspect.isclass(target) and hasattr(target, "__dataclass_fields__")
    # fields of a record may come from bases of other modules
    hints = typing.get_type_hints(target if record else inspect.unwrap(inner), include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def check_bounds(value: object, hint: Any, field: str) -> None:  # noqa: PLR0912
    """Hold a value against the bounds in its annotation.

    Raises:
        InputError: it is out of bounds; `field` is named.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        require_one_of(value, inner, field=field)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if origin is Annotated:
        bounds = [bound for bound in inner[1:] if isinstance(bound, BaseMetadata)]
        if bounds and (value is None or not all(_holds(value, bound) for bound in bounds)):
            raise InputError(f"{value} {_fault(bounds)}", field=field)
        check_bounds(value, inner[0], field)
    elif origin in {typing.Union, types.UnionType}:
        for one in inner if value is not None else ():
            if typing.get_origin(one) is not None:
                check_bounds(value, one, field)
    elif origin in {tuple, list} or (inspect.isclass(origin) and issubclass(origin, Sequence)):
        if isinstance(value, Sequence) and not isinstance(value, str):
            items = inner if origin is tuple and Ellipsis not in inner else inner[:1] * len(value)
            for item, item_hint in zip(value, items, strict=False):
                check_bounds(item, item_hint, field)
    elif inspect.isclass(origin) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        for key, item in value.items():
            if inner[0] is str and not isinstance(key, str):
                raise InputError(f"key {key!r} is no text", field=field)
            check_bounds(item, inner[1], f"{field}.{key}")


def _holds(value: Any, bound: BaseMetadata) -> bool:
    if isinstance(bound, MinLen):
        return not isinstance(value, Sized) or len(value) >= bound.min_length
    if not isinstance(value, numbers.Real):
        return True  # of another type: what is built says so
    return bool(_COMPARED[type(bound)](value, _limit(bound)))


_COMPARED: Mapping[type, Callable[[Any, Any], Any]] = {
    Gt: operator.gt, Ge: operator.ge, Lt: operator.lt, Le: operator.le,
}  # fmt: skip


def _limit(bound: BaseMetadata) -> float:
    limit: float = getattr(bound, type(bound).__name__.lower())
    return limit


def _fault(bounds: Sequence[BaseMetadata]) -> str:
    """What a value is that breaks one of the bounds: "is not positive and finite"."""
    if any(isinstance(bound, MinLen) for bound in bounds):
        return "is too short"
    low = next((bound for bound in bounds if isinstance(bound, Gt | Ge)), None)
    high = next((bound for bound in bounds if isinstance(bound, Lt | Le)), None)
    finite = isinstance(high, Lt) and _limit(high) == math.inf
    if low is None:
        assert high is not None
        return f"is {'above' if isinstance(high, Le) else 'not below'} {_limit(high):g}"
    least = _limit(low)
    if high is not None and not finite:
        if isinstance(low, Ge) and isinstance(high, Le):
            return f"is not between {least:g} and {_limit(high):g}"
        ends = ("[" if isinstance(low, Ge) else "(", "]" if isinstance(high, Le) else ")")
        return f"is not in {ends[0]}{least:g}, {_limit(high):g}{ends[1]}"
    if isinstance(low, Gt):
        words = f"is not above {least:g}" if least else "is not positive"
        return f"{words} and finite" if finite else words
    words = f"is below {least:g}" if least else "is negative"
    return f"{words} or not finite" if finite else words
