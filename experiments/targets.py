"""Objects named in a config by `_target_`: checked against their signature, then built."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from envs.errors import InputError

SPECIAL_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_", "_args_"})
SIMPLE_TYPES: dict[type, str] = {
    bool: "true or false", int: "an integer", float: "a number", str: "a text",
}  # fmt: skip


def check_targets(node: object, key: str = "") -> None:
    """Check every `_target_` mapping in a plain config: keys, missing keys, simple types.

    Raises:
        InputError: naming the config key, and the alternatives where it is unknown.
    """
    if isinstance(node, Mapping):
        if "_target_" in node:
            _check_call(node, key)
        for name, value in node.items():
            check_targets(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            check_targets(value, f"{key}[{index}]")


def build(node: Mapping[str, object]) -> Any:
    """The object a `_target_` mapping describes; nested mappings are built first.

    Raises:
        InputError: the constructor rejected its arguments.
    """
    try:
        return instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, InputError):
                raise InputError(
                    cause.message, file=cause.file, record=cause.record, field=cause.field
                ) from error
            cause = cause.__cause__ or cause.__context__
        raise


def _check_call(node: Mapping[str, object], key: str) -> None:
    target = str(node["_target_"])
    try:
        function = get_object(target)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot import {target!r} ({first})", file=f"{key}._target_") from error
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"{target!r} cannot be called", file=f"{key}._target_") from error
    given = [str(name) for name in node if name not in SPECIAL_KEYS]
    known = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    ]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in given if name not in known]
    if unknown and not takes_any:
        raise InputError(unknown_key(f"{key}.{unknown[0]}", known))
    if not node.get("_partial_") and "_args_" not in node:
        for name in known:
            if name not in given and parameters[name].default is inspect.Parameter.empty:
                raise InputError(f"config key '{key}.{name}' is missing: {target} needs it")
    hints = _hints(function)
    for name in given:
        if name in hints:
            check_type(node[name], hints[name], f"{key}.{name}")


def unknown_key(key: str, known: typing.Iterable[str]) -> str:
    """The one line for a key that is not there."""
    parent = key.rpartition(".")[0]
    where = f" under {parent}" if parent else ""
    return f"unknown config key '{key}' (known{where}: {', '.join(sorted(known)) or 'none'})"


def check_type(value: object, hint: Any, key: str) -> None:
    """Check a config value against a hint made of bool, int, float, str, None and unions of them.

    Other hints are left to the constructor.

    Raises:
        InputError: naming the key and what it must be.
    """
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    kinds = typing.get_args(hint) if union else (hint,)
    if not all(kind in SIMPLE_TYPES or kind is type(None) for kind in kinds):
        return
    if value is None and type(None) in kinds:
        return
    for kind in kinds:
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if fits and (kind is bool or not isinstance(value, bool)):
            return
    expected = " or ".join(SIMPLE_TYPES.get(kind, "null") for kind in kinds)
    raise InputError(f"config key '{key}': {value!r} is not {expected}")


def _hints(function: Any) -> dict[str, Any]:
    described = function.__init__ if inspect.isclass(function) else function
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return {}
