"""Objects named in a config by `_target_`: checked against their signature, then built."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import yaml
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf.errors import OmegaConfBaseException

from agents.solver import Solver
from envs.errors import InputError, meant
from envs.files import read_content
from experiments.run.declared import FLOORS, TRUST, config_folders, names_in, names_typed
from experiments.run.extras import missing_extra
from experiments.run.provenance import DISTRIBUTION

SPECIAL_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_", "_args_"})
SIMPLE_TYPES: dict[type, str] = {
    bool: "true or false", int: "an integer", float: "a number", str: "a text",
}  # fmt: skip
OURS = ("agents", "envs", "experiments", "models")  # packages of this project
_TREE = Path(__file__).parents[2]  # where they lie
PLAIN_MODULES = frozenset({"builtins", "typing", "collections.abc", "types", "numpy"})
ADDRESSES = ("address", "ray_address")  # of Ray clusters, which run what they are sent
UNUSED = "learner."  # what is trained with is training.learner
FULL_KEY = "full_key: "  # what Hydra tells of the node inside the one that is built
Kind = TypeVar("Kind")

MOST_NODES = 1_000_000  # of a YAML file, each counted as often as it is meant
SEEDS = 2**32  # every generator in use takes seeds below

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # what it logs, it raises as well


def name_here(name: str) -> str:
    """The name that something of this project has here.

    `envs.cost.RooflineCost` of a checkout, of its configs and its run folders, is
    `meshwright.envs.cost.RooflineCost` where the wheel is installed: either is understood in both.
    Names in anybody else's modules are left alone.
    """
    flat = name.removeprefix(f"{DISTRIBUTION}.")
    floor, _, rest = flat.partition(".")
    path = _TREE / floor / rest.partition(".")[0]
    ours = floor in OURS and bool(rest) and (path.is_dir() or path.with_suffix(".py").is_file())
    return f"{FLOORS}{flat}" if ours else name


def targets_here(node: Any) -> Any:
    """A plain config whose `_target_`s have the names that they have here."""
    if isinstance(node, Mapping):
        return {
            key: name_here(value)
            if key == "_target_" and isinstance(value, str)
            else targets_here(value)
            for key, value in node.items()
        }
    return [targets_here(item) for item in node] if isinstance(node, list) else node


def check_names(node: object, file: str | Path, key: str = "", given: Collection[str] = ()) -> None:
    """Refuse what a file may not say, before anything that it names is imported.

    It may have objects made that `conf` names, a folder of `--config-dir`, or the command line, and
    takes nothing from the environment. Keys of `given` are replaced by the command line.

    Raises:
        InputError: naming the file and the key.
    """
    if isinstance(node, Mapping):
        for name, value in node.items():
            where = f"{key}.{name}" if key else str(name)
            last = where.rpartition(".")[2]
            address = last in ADDRESSES and "_target_" in node and not where.startswith(UNUSED)
            if last == "_args_":
                raise InputError("arguments in a file have names", file=file, field=where)
            if address and value is not None and where not in given:
                raise InputError(f"is not taken from a file: give {where}=", file=file, field=where)
            if last == "_target_" and where not in given and not may_be_named(str(value)):
                near = meant(str(value), _names_of(*config_folders()))
                message = (
                    f"{value!r} is not of conf: {near}a class of your own takes {TRUST} {value}"
                )
                raise InputError(message, file=file, field=where)
            check_names(f"{name}", file, where)
            check_names(value, file, where, given)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            check_names(value, file, f"{key}[{index}]", given)
    elif isinstance(node, str) and "${" in node and key not in given:
        raise InputError("${...} is not resolved in a file", file=file, field=key)


def may_be_named(name: str) -> bool:
    """Whether a file may have an object made of `name`."""
    return name_here(name) in _names_of(*config_folders()) or name in names_typed()


@cache
def _names_of(ours: Path, *theirs: Path) -> frozenset[str]:
    """The names in folders of configs; of our own, those of this project."""
    shipped, own = (
        {name_here(x) for folder in folders for path in folder.rglob("*.yaml")
         for x in names_in(path.read_text(encoding="utf-8", errors="replace"))}
        for folders in ([ours], theirs)
    )  # fmt: skip
    floors = tuple(f"{FLOORS}{floor}." for floor in OURS)
    return frozenset(own | {name for name in shipped if name.startswith(floors)})


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


def check_seeds(node: object, key: str = "") -> None:
    """Check every `seed` in a plain config.

    Raises:
        InputError: naming the config key of one that is out of range.
    """
    items: Sequence[tuple[object, object]] = ()
    if isinstance(node, Mapping):
        items = list(node.items())
    for name, value in items:
        where = f"{key}.{name}" if key else str(name)
        if name == "seed" and isinstance(value, int) and not 0 <= value < SEEDS:
            raise InputError(f"config key '{where}': {value} is not in 0..{SEEDS - 1}")
        check_seeds(value, where)


def build(node: Mapping[str, object], key: str | None = None) -> Any:
    """The object a `_target_` mapping describes; nested mappings are built first.

    `key` is where the mapping stands in the config, for messages.

    Raises:
        InputError: the node is no such mapping, or the constructor rejected its arguments.
        MemoryError: what it describes does not fit the memory.
    """
    if key is not None and not (isinstance(node, Mapping) and "_target_" in node):
        described = "a mapping without _target_" if isinstance(node, Mapping) else repr(node)
        raise InputError(f"config key '{key}': {described} describes no object")
    try:
        return instantiate(targets_here(node), _convert_="all")
    except OmegaConfBaseException as error:
        raise InputError(str(error).splitlines()[0]) from error
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ or cause.__context__:
            cause = cause.__cause__ or cause.__context__ or cause
            if isinstance(cause, InputError):
                raise _refusal(cause, node, key, error) from error
        if isinstance(cause, MemoryError):
            raise cause from error
        if cause is error:  # Hydra will not make it
            raise InputError(" ".join(str(error).split())) from error
        if isinstance(cause, ValueError | ArithmeticError | TypeError):
            refused = f"{node.get('_target_')} refuses its arguments"
            raise InputError(f"{refused} ({' '.join(str(cause).split())})") from error
        raise


def _refusal(
    cause: InputError, node: Mapping[str, object], key: str | None, error: Exception
) -> InputError:
    """What a constructor told; where `key` is known it names the config key of the argument."""
    named = cause.field is not None or not cause.message.startswith("config key")
    if key is not None and named and cause.file is None and cause.record is None:
        line = str(error).splitlines()[-1]
        inner = line.partition(FULL_KEY)[2].split(".") if line.startswith(FULL_KEY) else []
        at: object = node
        for number, part in enumerate(inner):
            item = re.fullmatch(r"(.*\D)\[?(\d+)\]?", part)  # of a list, as Hydra writes it
            at = (
                at.get(part, at.get(item[1]) if item else None) if isinstance(at, Mapping) else None
            )
            if item and isinstance(at, list):
                at, inner[number] = at[int(item[2])], f"{item[1]}[{item[2]}]"
        where = ".".join([key, *inner])
        if cause.field is not None and isinstance(at, Mapping) and cause.field in at:
            return InputError(f"config key '{where}.{cause.field}': {cause.message}")
        return InputError(cause.message, file=f"config key '{where}'", field=cause.field)
    return InputError(cause.message, file=cause.file, record=cause.record, field=cause.field)


def build_as(kind: type[Kind], node: Mapping[str, object], key: str, thing: str) -> Kind:
    """The `kind` of object that the config node under `key` describes.

    Raises:
        InputError: the node describes no `thing`, or as `build`.
    """
    built: Kind = build(node, key)
    if not (_solves(built, kind) if typing.get_args(kind) else isinstance(built, kind)):
        raise no_such_thing(key, node, thing)
    return built


def no_such_thing(key: str, node: object, thing: str) -> InputError:
    """The fault of a config node that describes something else than `thing`."""
    described = node.get("_target_") if isinstance(node, Mapping) else repr(node)
    return InputError(f"config key '{key}': {described} is no {thing}")


def _check_call(node: Mapping[str, object], key: str) -> None:
    target = str(node["_target_"])
    try:
        function = get_object(name_here(target))
    except Exception as error:
        where, told = f"{key}._target_", missing_extra(error)
        if told is not None:
            raise InputError(f"{target!r} {told}", file=where) from error
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot import {target!r} ({cause})", file=where) from error
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
    parent, _, name = key.rpartition(".")
    where, names = f" under {parent}" if parent else "", sorted(known)
    told = f"{meant(name, names)}known{where}: {', '.join(names) or 'none'}"
    return f"unknown config key '{key}' ({told})"


def check_type(value: object, hint: Any, key: str) -> None:
    """Check a config value against a hint.

    The hint may be made of bool, int, float, str, Path, None and unions of them, or be a
    dataclass, a protocol or a callable, a sequence or mapping of one of those, or one of those or
    None. Other hints are left to the constructor.

    Raises:
        InputError: naming the key and what it must be.
    """
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    kinds = typing.get_args(hint) if union else (hint,)
    kinds = tuple(dict.fromkeys(str if kind is Path else kind for kind in kinds))
    if value is None and type(None) in kinds:
        return
    if not all(kind in SIMPLE_TYPES or kind is type(None) for kind in kinds):
        objects = [kind for kind in kinds if kind is not type(None)]
        if len(objects) == 1:
            _check_object(value, objects[0], key)
        return
    for kind in kinds:
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if fits and (kind is bool or not isinstance(value, bool)):
            return
    expected = " or ".join(SIMPLE_TYPES.get(kind, "null") for kind in kinds)
    raise InputError(f"config key '{key}': {value!r} is not {expected}")


def _check_object(value: object, hint: Any, key: str) -> None:
    """Check a value that an object, or a sequence or mapping of objects, is to be built from."""
    if typing.get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            raise InputError(f"config key '{key}': {value!r} is not a mapping")
        for name, one in value.items():
            check_type(one, typing.get_args(hint)[1], f"{key}.{name}")
        return
    if typing.get_origin(hint) in {Sequence, list}:
        (item,) = typing.get_args(hint)
        if not isinstance(value, list):
            raise InputError(f"config key '{key}': {value!r} is not a list")
        for index, one in enumerate(value):
            check_type(one, item, f"{key}[{index}]")
        return
    is_function = typing.get_origin(hint) is Callable
    is_record = dataclasses.is_dataclass(hint)
    is_protocol = bool(getattr(hint, "_is_protocol", False))
    if not (is_function or is_record or is_protocol or _is_class_of_objects(hint)):
        return
    expected = "function" if is_function else _name(hint)
    if not isinstance(value, Mapping) or "_target_" not in value:
        described = "a mapping without _target_" if isinstance(value, Mapping) else repr(value)
        raise InputError(f"config key '{key}': {described} is no {expected}")
    try:
        target = get_object(name_here(str(value["_target_"])))
    except Exception:  # told by the check of the node itself
        return
    if not inspect.isclass(target) or not (is_record or is_protocol):
        return
    if not (issubclass(target, hint) if is_record else _has_methods(target, hint)):
        raise no_such_thing(key, value, expected)


def _is_class_of_objects(hint: Any) -> bool:
    """Whether values of a hint can come from `_target_` alone, as those of plain types cannot."""
    return inspect.isclass(hint) and hint.__module__ not in PLAIN_MODULES


def _solves(thing: object, hint: Any) -> bool:
    """Whether an object, or a class, is the `Solver` of a hint."""
    return typing.get_args(hint)[0] in getattr(thing, "solves", ())


def _name(hint: Any) -> str:
    solved = typing.get_args(hint)
    return f"solver of {solved[0].__name__}" if solved else str(hint.__name__)


def _has_methods(target: type, hint: Any) -> bool:
    """Whether a class has the methods of a protocol and solves its problem; true of other hints."""
    if typing.get_origin(hint) is Solver:
        return _solves(target, hint)
    names = [name for name, value in getattr(hint, "__dict__", {}).items() if callable(value)]
    return all(hasattr(target, name) for name in names if not name.startswith("_"))


def _hints(function: Any) -> dict[str, Any]:
    described = function.__init__ if inspect.isclass(function) else function
    if dataclasses.is_dataclass(function) or hasattr(function, "_fields"):
        described = function  # bases may be of other modules; a named tuple has no __init__
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return {}


def object_in_file(path: str, group: str) -> Any:
    """The object that a YAML file describes, for the config group `group`.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    document = yaml_document(path)
    if not isinstance(document, dict) or "_target_" not in document:
        raise InputError(f"is no {group}: it has no '_target_'", file=path)
    check_names(document, path, group)
    node = targets_here(document)
    try:
        check_targets(node, group)
        return build(node, group)
    except InputError as error:
        raise InputError(str(error), file=path) from error


def yaml_document(path: str | Path) -> Any:
    """What a YAML file holds: mappings, lists and scalars.

    Raises:
        InputError: as `yaml_text`.
    """
    return yaml.safe_load(yaml_text(path))


def yaml_text(path: str | Path) -> str:
    """The text of a YAML file.

    Raises:
        InputError: the file cannot be read, a key stands twice in a mapping, a node contains
            itself, or aliases repeat nodes without measure.
    """
    try:
        text = read_content(path).decode()
        _check_keys(yaml.compose(text, Loader=yaml.SafeLoader), path, (), count(1))
        yaml.safe_load(text)  # which refuses more
    except (RecursionError, ValueError, yaml.YAMLError) as error:
        told = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        raise InputError(f"cannot be read ({told})", file=path) from error
    return text


MOST_DEEP = 32  # mappings and lists inside one another


def _check_keys(
    node: yaml.Node | None, path: str | Path, above: tuple[yaml.Node, ...], visits: Iterator[int]
) -> None:
    """Refuse a key that stands twice, of which YAML would keep the last, and a node in itself."""
    if next(visits) > MOST_NODES:
        raise InputError(f"its aliases make more than {MOST_NODES:,} nodes of it", file=path)
    if node is None or isinstance(node, yaml.ScalarNode):
        return
    line = f"line {node.start_mark.line + 1}"
    if len(above) > MOST_DEEP:
        raise InputError("is nested too deeply", file=path, record=line)
    if any(node is one for one in above):
        raise InputError("contains itself", file=path, record=line)
    items: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                line = f"line {key.start_mark.line + 1}"
                raise InputError("stands twice", file=path, record=line, field=name)
            seen.add(name)
            items.append(value)
    elif isinstance(node, yaml.SequenceNode):
        items = node.value
    for item in items:
        _check_keys(item, path, (*above, node), visits)
