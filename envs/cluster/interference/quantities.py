"""Reading dimensionless quantities of the models, so that a bad value names its key."""

from __future__ import annotations

from envs.errors import InputError


def read_share(value: object, *, key: str) -> float:
    """A number from 0 to 1.

    Raises:
        InputError: naming `key`.
    """
    number = read_number(value, key=key)
    if number > 1.0:
        raise InputError(f"{value!r} is above 1", field=key)
    return number


def read_number(value: object, *, key: str) -> float:
    """A finite number from 0 on.

    Raises:
        InputError: naming `key`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number", field=key)
    if not 0.0 <= value < float("inf"):
        raise InputError(f"{value!r} is negative or not finite", field=key)
    return float(value)


def read_seed(value: object, *, key: str) -> int:
    """A whole number.

    Raises:
        InputError: naming `key`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a whole number", field=key)
    return value
