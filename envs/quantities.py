"""Reading physical quantities at the edge, so that a bad value names its key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from envs.errors import InputError


def read_quantity(
    parse: Callable[[str | float], float], value: str | float, *, key: str, at_least: float = 0.0
) -> float:
    """`value` in SI units, read by one of the parsers of `envs.units`.

    Args:
        parse: `parse_bytes`, `parse_bandwidth`, `parse_flops` or `parse_seconds`.
        value: a number or a text with a unit.
        key: the configuration key, for the error message.
        at_least: the smallest value allowed; 0 excludes nothing but negatives.

    Raises:
        InputError: naming `key`, when the unit is wrong or the value is out of range.
    """
    try:
        number = parse(value)
    except InputError as error:
        raise InputError(error.message, field=key) from error
    if not math.isfinite(number) or number < at_least:
        raise InputError(f"{value!r} is too small or not finite", field=key)
    return number


def read_count(value: object, *, key: str, at_least: int = 1) -> int:
    """`value` as a whole number of things.

    Raises:
        InputError: naming `key`, when it is no integer or smaller than `at_least`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a whole number", field=key)
    if value < at_least:
        raise InputError(f"{value} is less than {at_least}", field=key)
    return value


def check_keys(section: object, keys: tuple[str, ...], *, key: str) -> Mapping[str, Any]:
    """`section` as a mapping that has exactly `keys`.

    Raises:
        InputError: naming `key.name`, when a key is missing or unknown.
    """
    if not isinstance(section, Mapping):
        raise InputError(f"{section!r} is not a section with {', '.join(keys)}", field=key)
    for name in section:
        if name not in keys:
            raise InputError(f"unknown key (known: {', '.join(keys)})", field=f"{key}.{name}")
    for name in keys:
        if name not in section:
            raise InputError("is missing", field=f"{key}.{name}")
    return section
