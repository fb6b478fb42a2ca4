"""Objects named in a config by `_target_`: checked against their signature, then built."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from envs.errors import InputError, in_one_line, meant
from experiments.config.command_words import TRUST, config_folders, names_in, names_typed
from experiments.config.papers import PAPERS
from experiments.config.registry import GROUPS, OF_FILES, dotted, names_in_row
from experiments.config.signatures import DISTRIBUTION, PREFIX, described, is_ours, local, present
from experiments.config.yaml_files import parts_of, yaml_document

EXTRAS = {  # module: the extra of pyproject.toml that brings it
    "fastapi": "serve",
    "hydra_plugins": "sweep",
    "mlflow": "mlflow",
    "onnx": "train",
    "onnxscript": "train",
    "prometheus_client": "serve",
    "pymetis": "graphs",
    "ray": "train",
    "sklearn": "train",
    "tensorboard": "train",
    "threadpoolctl": "serve",
    "torch": "train",
    "torch_geometric": "train",
    "transformers": "train",
    "uvicorn": "serve",
    "wandb": "wandb",
}


def missing_extra(error: BaseException | None) -> str | None:
    """What an error says if a module of an extra is not there: `needs the extra ...`."""
    for cause in causes(error):
        if isinstance(cause, ModuleNotFoundError):
            extra = EXTRAS.get(str(cause.name).partition(".")[0])
            if extra is not None:
                return f"needs the extra '{extra}': pip install 'meshwright[{extra}]'"
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


SPECIAL_KEYS = frozenset({"_target_", "_partial_", "_recursive_", "_convert_", "_args_"})
TYPES = {  # of pydantic's errors
    "bool_type": "true or false", "int_type": "an integer", "int_from_float": "an integer",
    "float_type": "a number", "string_type": "a text", "none_required": "null",
    "list_type": "a list", "dict_type": "a mapping", "path_type": "a text",
}  # fmt: skip
BOUNDS = {  # of pydantic's errors too: where the bound is, and the words, also where it is 0
    "greater_than": ("gt", "is not above {:g}", "is not positive"),
    "greater_than_equal": ("ge", "is below {:g}", "is negative"),
    "less_than": ("lt", "is not below {:g}", "is not negative"),
    "less_than_equal": ("le", "is above {:g}", "is positive"),
    "too_short": ("min_length", "has fewer items than {}", ""),
    "too_long": ("max_length", "has more items than {}", "is not empty"),
}
_BRANCH = re.compile(r"constrained-.*|function-.*|\S+\[.*\]")  # in pydantic's places, of a union
PLAIN_MODULES = frozenset({"builtins", "typing", "collections.abc", "types", "numpy"})
ADDRESSES = ("address", "ray_address")  # of Ray clusters, which run what they are sent
UNUSED = "learner."  # what is trained with is training.learner
FULL_KEY = "full_key: "  # what Hydra tells of the node inside the one that is built
Kind = TypeVar("Kind")

SEEDS = 2**32  # every generator in use takes seeds below

logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # what it logs, it raises as well


def name_here(name: str) -> str:
    """The name that something of this project has here.

    `envs.cost.RooflineCost` of a checkout, of its configs and its run folders, is
    `meshwright.envs.cost.RooflineCost` where the wheel is installed: either is understood in both.
    Names in anybody else's modules are left alone.
    """
    flat = present(name.removeprefix(f"{DISTRIBUTION}."))
    return PREFIX + flat if is_ours(flat) else name


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
    for around, part in parts_of(node, key):
        if isinstance(part, str) and "${" in part and around not in given:
            raise InputError("${...} is not resolved in a file", file=file, field=around)
        for name, value in part.items() if isinstance(part, Mapping) else ():
            where = f"{around}.{name}" if around else str(name)
            last, fault = where.rpartition(".")[2], ""
            if last == "_args_":
                fault = "arguments in a file have names"
            elif "${" in str(name):
                fault = "${...} is not resolved in a file"
            elif where in given:
                continue
            elif last == "_target_" and not may_be_named(str(value)):
                near = meant(str(value), _names_of(*config_folders()))
                fault = f"{value!r} is not of conf: {near}a class of your own takes {TRUST} {value}"
            elif last in ADDRESSES and "_target_" in part and not where.startswith(UNUSED):
                fault = "" if value is None else f"is not taken from a file: give {where}="
            if fault:
                raise InputError(fault, file=file, field=where)


def may_be_named(name: str) -> bool:
    """Whether a file may have an object made of `name`."""
    return name_here(name) in _names_of(*config_folders()) or name in names_typed()


@cache
def _names_of(ours: Path, *theirs: Path) -> frozenset[str]:
    """The names in folders of configs and in the registry, and those that their defaults have.

    Of the shipped folder those of this project alone.
    """
    shipped, own = (
        {name_here(x) for folder in folders for path in folder.rglob("*.yaml")
         for x in names_in(path.read_text(encoding="utf-8", errors="replace"))}
        for folders in ([ours, *(paper.conf for paper in PAPERS)], theirs)
    )  # fmt: skip
    rows = {x for names in GROUPS.values() for row in names.values() for x in names_in_row(row)}
    begun = {x for x in {*shipped, *rows, *map(dotted, OF_FILES)} if is_ours(local(x))}
    parts = (part for name in begun for _, part in parts_of(described(name)))
    inner = {str(x["_target_"]) for x in parts if isinstance(x, Mapping) and "_target_" in x}
    return frozenset(own | begun | inner)


def check_targets(node: object, key: str = "") -> None:
    """Check every `_target_` mapping in a plain config, keys and types, and every `seed`.

    Raises:
        InputError: naming the config key, and the alternatives where it is unknown.
    """
    for where, part in parts_of(node, key):
        if isinstance(part, Mapping) and "_target_" in part:
            _check_call(part, where)
        is_seed = where.rpartition(".")[2] == "seed"
        if is_seed and isinstance(part, int) and not 0 <= part < SEEDS:
            raise InputError(f"config key '{where}': {part} is not in 0..{SEEDS - 1}")


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
        for cause in causes(error):
            if isinstance(cause, InputError):
                raise _refusal(cause, node, key, error) from error
        if isinstance(cause, MemoryError):
            raise cause from error
        if cause is error:  # Hydra will not make it
            raise InputError(in_one_line(error)) from error
        if isinstance(cause, ValueError | ArithmeticError | TypeError):
            refused = f"{node.get('_target_')} refuses its arguments"
            raise InputError(f"{refused} ({in_one_line(cause)})") from error
        raise


def _refusal(
    cause: InputError, node: Mapping[str, object], key: str | None, error: Exception
) -> InputError:
    """A constructor's message; where `key` is known it names the config key of the argument."""
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


def _named(target: str, key: str) -> Any:
    """What a dotted name of a config stands for.

    Raises:
        InputError: it cannot be imported.
    """
    try:
        return get_object(name_here(target))
    except Exception as error:
        where, reason = f"{key}._target_", missing_extra(error)
        if reason is not None:
            raise InputError(f"{target!r} {reason}", file=where) from error
        cause = in_one_line(error) or type(error).__name__
        absent = "No module named" in cause
        module, _, name = target.rpartition(".")
        if absent and f"{module!r} is not a package" in cause:
            raise InputError(f"{module} has no {name}", file=where) from error
        hint = "; PYTHONPATH lists the folders of modules" if absent else ""
        raise InputError(f"cannot import {target!r} ({cause}){hint}", file=where) from error


def _check_call(node: Mapping[str, object], key: str) -> None:
    target = str(node["_target_"])
    function = _named(target, key)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"{target!r} cannot be called", file=f"{key}._target_") from error
    given = [str(name) for name in node if name not in SPECIAL_KEYS]
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    known = {name: one.default for name, one in parameters.items() if one.kind in named}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    unknown = [name for name in given if name not in known]
    if unknown and not takes_any:
        raise InputError(unknown_key(f"{key}.{unknown[0]}", known))
    if not node.get("_partial_") and "_args_" not in node:
        for name, default in known.items():
            if name not in given and default is inspect.Parameter.empty:
                raise InputError(f"config key '{key}.{name}' is missing: {target} needs it")
    hints = _hints(function)
    for name in given:
        if name in hints:
            check_type(node[name], hints[name], f"{key}.{name}")


def unknown_key(key: str, known: typing.Iterable[str]) -> str:
    """The one line for a key that is not there."""
    parent, _, name = key.rpartition(".")
    where, names = f" under {parent}" if parent else "", sorted(known)
    reason = f"{meant(name, names)}known{where}: {', '.join(names) or 'none'}"
    return f"unknown config key '{key}' ({reason})"


def check_type(value: object, hint: Any, key: str) -> None:
    """Check a config value against a hint: plain types strictly, objects by what describes them.

    Raises:
        InputError: naming the key and what it must be.
    """
    union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    kinds = [x for x in (typing.get_args(hint) if union else (hint,)) if x is not type(None)]
    if _is_plain(hint):
        try:
            TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            raise InputError(type_fault(error, key)) from error
    elif len(kinds) == 1 and (value is not None or not union):
        origin, inner = typing.get_origin(kinds[0]), typing.get_args(kinds[0])
        if origin is Mapping:
            for name, one in _as(dict, value, "a mapping", key).items():
                check_type(one, inner[1], f"{key}.{name}")
        elif origin in {Sequence, list}:
            for index, one in enumerate(_as(list, value, "a list", key)):
                check_type(one, inner[0], f"{key}[{index}]")
        else:
            _check_object(value, kinds[0], key)


def type_fault(error: ValidationError, key: str) -> str:
    """The one line for a value of the wrong type, somewhere in what stands under `key`."""
    fault = error.errors()[0]
    place = [x for x in fault["loc"] if isinstance(x, int) or not _BRANCH.fullmatch(str(x))]
    named = "".join(f"[{x}]" if isinstance(x, int) else f".{x}" for x in place)
    named = re.sub(r"\.(int|float|str|bool|none)$", "", named)
    said = TYPES.get(fault["type"]) or fault["msg"].replace("Input should be", "").strip()
    said = "is not " + said
    if fault["type"] in BOUNDS:
        where, words, beside_zero = BOUNDS[fault["type"]]
        bound = fault["ctx"][where]
        said = words.format(bound) if bound else beside_zero
        said = "is not finite" if math.isinf(bound) else said
    elif fault["type"] == "literal_error":
        said = "is not one of " + fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    return f"config key '{(key + named).lstrip('.')}': {fault['input']!r} {said}"


def _is_plain(hint: Any) -> bool:
    """Whether a hint is made of numbers, texts and sequences and mappings of these."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return True
    if origin is not None and origin is not Callable:
        return all(_is_plain(x) for x in inner if x is not Ellipsis)
    return hint in {bool, int, float, str, Path, type(None)}


def _as(kind: type[Kind], value: object, thing: str, key: str) -> Kind:
    if not isinstance(value, kind):
        raise InputError(f"config key '{key}': {value!r} is not {thing}")
    return value


def _check_object(value: object, hint: Any, key: str) -> None:
    """Check a value that an object is to be built from."""
    is_function = typing.get_origin(hint) is Callable
    is_class = inspect.isclass(hint) and hint.__module__ not in PLAIN_MODULES
    if not (is_function or _is_solver(hint) or is_class):
        return
    expected = "function" if is_function else _name(hint)
    if not isinstance(value, Mapping) or "_target_" not in value:
        described = "a mapping without _target_" if isinstance(value, Mapping) else repr(value)
        raise InputError(f"config key '{key}': {described} is no {expected}")
    target = _named(str(value["_target_"]), key)
    if inspect.isclass(target) and not _fits(target, hint):
        raise no_such_thing(key, value, expected)


def _fits(target: type, hint: Any) -> bool:
    """Whether a class is what a hint asks for: a record, a protocol's methods, a solver's problem.

    True of other hints, whose constructors say it.
    """
    if _is_solver(hint):
        return _solves(target, hint)
    if dataclasses.is_dataclass(hint):
        return issubclass(target, typing.cast(type, hint))
    names = [name for name, member in getattr(hint, "__dict__", {}).items() if callable(member)]
    public = [name for name in names if not name.startswith("_")]
    return not getattr(hint, "_is_protocol", False) or all(hasattr(target, x) for x in public)


def _is_solver(hint: Any) -> bool:
    """Whether it is `agents.solver.Solver` of a problem, which is not imported for it."""
    return getattr(typing.get_origin(hint), "__module__", "").endswith("agents.solver")


def _solves(thing: object, hint: Any) -> bool:
    """Whether an object, or a class, is the `Solver` of a hint."""
    return typing.get_args(hint)[0] in getattr(thing, "solves", ())


def _name(hint: Any) -> str:
    solved = typing.get_args(hint)
    return f"solver of {solved[0].__name__}" if solved else str(hint.__name__)


def _hints(function: Any) -> dict[str, Any]:
    described = function.__init__ if inspect.isclass(function) else function
    if dataclasses.is_dataclass(function) or hasattr(function, "_fields"):
        described = function  # bases may be of other modules; a named tuple has no __init__
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return {}


def object_in_file(path: str, group: str, *kinds: type[Kind]) -> Kind:
    """The object of one of the kinds that a YAML file describes, for the config group `group`.

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
        built = build(node, group)
    except InputError as error:
        raise InputError(str(error), file=path) from error
    if not isinstance(built, kinds):
        raise InputError(f"describes no {group} but a {type(built).__name__}", file=path)
    return built
