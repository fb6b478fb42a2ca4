"""SI constants and parsing: `"16GiB"`, `"100Gbps"` to floats.

Everywhere in the project: seconds, bytes, FLOP, FLOP/s, bytes/s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from envs.errors import InputError, refused_in

DTYPES: tuple[str, ...] = (
    "float32", "float16", "bfloat16", "float64", "float8", "int64", "int32", "int16", "int8",
    "uint8", "bool",
)  # fmt: skip

EXACT = 2**53 - 1  # above it not every whole number is a float
KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15
KIBI, MEBI, GIBI, TEBI = 2.0**10, 2.0**20, 2.0**30, 2.0**40
MILLISECOND, MICROSECOND, NANOSECOND = 1e-3, 1e-6, 1e-9

_PREFIX = {
    "": 1.0, "k": KILO, "K": KILO, "M": MEGA, "G": GIGA, "T": TERA, "P": PETA,
    "Ki": KIBI, "Mi": MEBI, "Gi": GIBI, "Ti": TEBI,
}  # fmt: skip
_TIME = {"s": 1.0, "ms": MILLISECOND, "us": MICROSECOND, "µs": MICROSECOND, "ns": NANOSECOND}
_NUMBER = re.compile(r"^\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*(.*?)\s*$")


def _prefixed(units: Mapping[str, float]) -> dict[str, float]:
    return {
        prefix + unit: scale * factor
        for unit, factor in units.items()
        for prefix, scale in _PREFIX.items()
    }


_SIZE = _prefixed({"B": 1.0})
_RATE = _prefixed({"bps": 1 / 8, "b/s": 1 / 8, "bit/s": 1 / 8, "B/s": 1.0})
_SPEED = _prefixed({"FLOP/s": 1.0, "FLOPS": 1.0})


def parse_bytes(text: str | float) -> float:
    """`"16GiB"`, `"512 MB"`, `"40B"` or a plain number of bytes, to bytes."""
    return _parse(text, _SIZE, "a size such as 16GiB")


def parse_bandwidth(text: str | float) -> float:
    """`"25Gbps"` (bits) or `"300GB/s"` (bytes) or a plain number of bytes/s, to bytes/s."""
    return _parse(text, _RATE, "a rate such as 25Gbps")


def parse_flops(text: str | float) -> float:
    """`"15.7TFLOP/s"` or a plain number, to FLOP/s."""
    return _parse(text, _SPEED, "a speed such as 15.7TFLOP/s")


def parse_seconds(text: str | float) -> float:
    """`"5us"`, `"1.5 ms"`, `"2s"` or a plain number of seconds, to seconds."""
    return _parse(text, _TIME, "a time such as 5us")


def _parse(text: str | float, units: Mapping[str, float], example: str) -> float:
    match = _NUMBER.match(str(text))
    if match is None or (match[2] and match[2] not in units):
        raise InputError(f"{text!r} is not {example}")
    return float(match[1]) * units.get(match[2], 1.0)


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
    with refused_in(field=key):
        number = parse(value)
    if not math.isfinite(number) or number < at_least:
        raise InputError(f"{value!r} is too small or not finite: is its unit missing?", field=key)
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
