"""The command line against the config tree: every fault is one line, before anything runs."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from hydra import compose, initialize_config_module
from hydra._internal.hydra import Hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathElement
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from envs.bounds import bounds_of, check_bounds
from envs.errors import InputError, meant, near
from experiments.run.declared import (
    CONFIG_DIR,
    CONFIG_MODULE,
    RECIPE,
    choices,
    config_folders,
    fitting,
    option_file,
    plain_keys,
    use_config_folders,
)
from experiments.run.targets import (
    check_names,
    check_seeds,
    check_targets,
    targets_here,
    unknown_key,
    yaml_document,
    yaml_text,
)

Schema = TypeVar("Schema")

CONFIG_FILE = "config.yaml"  # of a run folder
FILE_OPTION = "file"  # the option of a group that reads a file given by its `path`
MOST_NAMED = 12  # options of a group, in a message
PLAIN = "value"  # in Hydra's words, of a key that has the name of a group
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILE_SUFFIXES = (
    ".csv", ".gz", ".json", ".npz", ".onnx", ".parquet", ".txt", ".xls", ".yaml", ".yml",
)  # fmt: skip
_RECIPES = (RECIPE, "sweep")  # groups of what is chosen of other groups
_files: dict[str, str] = {}  # of the user's, by the names that Hydra has them by
_MISSING_REFERENCE = re.compile(r"Interpolation key '([^']+)' not found")
_STARTED = f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"


def _run_folder(name: str, resume: str | None = None) -> str:
    """`outputs/<app>/<date-time>`, or the folder of the run that is taken up again."""
    return f"outputs/{name}/{_STARTED}" if resume is None else resume


OmegaConf.register_new_resolver("run_folder", _run_folder, replace=True)


@dataclass(frozen=True)
class Composed(Generic[Schema]):
    """What a command line composes to.

    `choices` maps each config group to the option that was chosen; `overrides` is the command
    line in Hydra's terms.
    """

    config: Schema
    folder: Path  # of the run
    choices: Mapping[str, str]
    overrides: Sequence[str]


def check_command_line(
    arguments: Sequence[str], config_name: str, schema: type[Schema]
) -> Composed[Schema]:
    """The typed config that a command line composes to.

    `group=<path>` is the group's `file` option; `group=<dotted name>` an object of anybody's
    package, named by `_target_`.

    Raises:
        InputError: an unknown key or option (naming the alternatives), a value of the wrong type
            or range, a missing key, a file that is not there.
    """
    # hydra-zen makes configs of signatures, pydantic checks by types: neither finds the key that a
    # typo meant in YAML that people write, which is what most of this file is about
    with hydra_over_configs() as loader:
        overrides, groups = hydra_words(arguments, loader, config_name), _groups(loader)
        parsed = _parse(overrides)
        try:
            whole = compose(config_name, overrides=overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise _fault(parsed, groups, config_name, error) from error
    own = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    for key in plain_groups(loader, config_name):
        if isinstance(own[key], DictConfig) and list(own[key]) == [PLAIN]:
            own[key] = own[key][PLAIN]
    config = typed(own, schema)
    try:
        place = OmegaConf.select(whole, "hydra.run.dir")
    except OmegaConfBaseException as error:
        raise InputError(_omegaconf_line(error)) from error
    if not isinstance(place, str) or not place.strip():
        raise InputError(f"config key 'hydra.run.dir': {place!r} is no folder")
    folder = Path(place)
    choices = {
        str(key): _files.get(str(value), str(value))
        for key, value in whole.hydra.runtime.choices.items()
    }
    return Composed(config, folder, choices, list(whole.hydra.overrides.task))


def check_words(words: Sequence[str]) -> None:
    """Refuse words of a file's command line that name what a file may not.

    Raises:
        InputError: naming the word and the key.
    """
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        group = key.partition("@")[0]
        if word.startswith("-"):
            raise InputError("a file's words are key=value", file=word)
        if any((folder / group).is_dir() for folder in config_folders()) and _is_name(value):
            check_names({f"{key}._target_": value}, word)
        check_names({key: _parse([word])[0].value() if "_target_" in word else word}, word)


def _is_name(value: str) -> bool:
    """Whether the option of a group is a dotted name, where it is none of conf."""
    is_file = value.endswith(_FILE_SUFFIXES) or os.path.isfile(value)
    return _DOTTED.fullmatch(value) is not None and not is_file


def take_config_folders(given: Sequence[str]) -> None:
    """Have the user's own config folders in the search path, after this project's.

    Raises:
        InputError: a folder is not there, or a file in it has the name of another's.
    """
    use_config_folders(given)
    ours, *theirs = config_folders()
    seen = {path.relative_to(ours) for path in ours.rglob("*.yaml")}
    for folder in theirs:
        if not folder.is_dir():
            raise InputError("there is no such folder", file=f"{CONFIG_DIR[0]} {folder}")
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder)
            if name in seen:
                raise InputError("there is an option of this name already", file=path)
            seen.add(name)


@contextmanager
def hydra_over_configs() -> Iterator[ConfigLoader]:
    """Hydra over all config folders, as with its own `--config-dir`."""
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        _, *theirs = config_folders()
        if theirs:
            path = loader.get_search_path()
            added = [SearchPathElement("command-line", f"file://{folder}") for folder in theirs]
            path.get_path()[-1:-1] = added  # what Hydra has last, it wants last
            GlobalHydra.instance().clear()
            loader = Hydra.create_main_hydra2("app", path).config_loader
        yield loader


def hydra_words(arguments: Sequence[str], loader: ConfigLoader, config_name: str) -> list[str]:
    """A command line in Hydra's terms: options that are files or dotted names are described.

    A key of the app that is a group of other apps becomes a mapping, which Hydra takes for a key.

    Raises:
        InputError: there is no such option, file or name.
    """
    groups, plain = _groups(loader), plain_groups(loader, config_name)
    found: list[str] = []
    for argument in arguments:
        found += _option(argument, groups, plain, loader, config_name)
    return found


def plain_groups(loader: ConfigLoader, config_name: str) -> set[str]:
    """The keys of an app that hold a value and are groups of other apps."""
    return _groups(loader) & plain_keys(config_name)


def _groups(loader: ConfigLoader) -> set[str]:
    return {group for group in loader.list_groups("") if group != "hydra"}


def typed(config: DictConfig, schema: type[Schema]) -> Schema:
    """`config` as an object of the dataclass `schema`, interpolations resolved.

    Raises:
        InputError: a key is unknown, missing, of the wrong type or out of its declared bounds.
    """
    structured = OmegaConf.structured(schema)
    known = [str(name) for name in structured]
    for key in config:
        if key not in known:
            raise InputError(unknown_key(str(key), known))
    try:
        merged = OmegaConf.merge(structured, config)
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise InputError(f"config key '{missing[0]}' is missing: give {missing[0]}=<value>")
        plain = targets_here(OmegaConf.to_container(merged, resolve=True))
        check_targets(plain)
        check_seeds(plain)
        resolved = OmegaConf.merge(structured, OmegaConf.create(plain))
        _check_ranges(OmegaConf.to_container(resolved), schema, "")
        built = OmegaConf.to_object(resolved)
    except OmegaConfBaseException as error:
        raise InputError(_omegaconf_line(error)) from error
    assert isinstance(built, schema)
    return built


def _check_ranges(value: object, hint: object, key: str) -> None:
    """Hold a value against the bounds of its annotation, those of dataclasses field by field."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        for name, inner in bounds_of(hint).items():
            _check_ranges(value.get(name), inner, f"{key}.{name}" if key else name)
    elif typing.get_origin(hint) is dict and isinstance(value, Mapping):
        for name, item in value.items():
            _check_ranges(item, typing.get_args(hint)[1], f"{key}.{name}")
    else:
        try:
            check_bounds(value, hint, key)
        except InputError as error:
            raise InputError(f"config key '{error.field}': {error.message}") from error


def saved_keys(folder: str | Path) -> set[str] | None:
    """The keys of the config in a run folder; None where there is none that can be read."""
    try:
        saved = OmegaConf.create(yaml_text(Path(folder) / CONFIG_FILE))
    except (InputError, ValueError, YAMLError):
        return None
    return {str(key) for key in saved} if isinstance(saved, DictConfig) else None


def plain_config(config: object) -> dict[str, object]:
    """A typed config as plain mappings, lists and scalars."""
    try:
        container = OmegaConf.to_container(OmegaConf.structured(config), resolve=True)
    except OmegaConfBaseException as error:  # a list in a list
        raise InputError(_omegaconf_line(error)) from error
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _option(
    argument: str, groups: set[str], plain: set[str], loader: ConfigLoader, config_name: str
) -> list[str]:
    """The choice of an option by a file or by a dotted name; other words as they are."""
    key, equals, value = argument.partition("=")
    group, package = key.lstrip("+").partition("@")[::2]
    if group not in groups or not equals:
        return [argument]
    if group in plain:
        return [argument if value.startswith("{") else f"{key}={{{PLAIN}:{value}}}"]
    options = sorted(name for name in loader.get_group_options(group) if "." not in name)
    if value in options or ("/" in value and option_file(group, value)):
        return [argument]
    path = Path(value).expanduser()
    is_file = os.path.isfile(path)  # which does not fail where the name is too long for one
    if "/" in value or is_file or value.endswith(_FILE_SUFFIXES):
        if not is_file:
            fault = "is no regular file" if os.path.exists(path) else "there is no such file"
            fault = "is a folder, not a file" if os.path.isdir(path) else fault
            raise InputError(fault, file=value)
        if FILE_OPTION in options and not package:
            quoted = str(path.resolve()).replace("'", r"\'")
            return [f"{group}={FILE_OPTION}", f"{group}.path='{quoted}'"]
        if path.suffix in {".yaml", ".yml"} and group not in _RECIPES:
            return [f"{key}={_stored_file(path.resolve(), group)}"]
    elif _DOTTED.fullmatch(value):
        node = OmegaConf.create({"_target_": value}, flags={"struct": False})  # takes any key
        ConfigStore.instance().store(group=group, name=value, node=node)
        return [argument]
    place = package.rpartition(".")[0]
    of_group = (choice for choice in choices(config_name) if choice.group == group)
    like = next((x for x in of_group if x.package.rpartition(".")[0] == place), None)
    fit = options if like is None else [x for x in fitting(like) if x in options]
    raise InputError(f"unknown value {argument} ({_known(value, options, fit)})")


def _known(value: str, options: Sequence[str], fit: Sequence[str]) -> str:
    """The options that a value may mean, then as many that fit as can be read in a line."""
    known = list(dict.fromkeys([*near(value, options), *fit]))
    shown = known[:MOST_NAMED]
    more = f" and {len(known) - len(shown)} more" if len(shown) < len(known) else ""
    return f"{meant(value, options)}known: {', '.join(shown)}{more}"


def _stored_file(path: Path, group: str) -> str:
    """The name by which Hydra has a file in the form of those of a group, as one more option.

    Raises:
        InputError: it cannot be read, or says what a file may not.
    """
    node = yaml_document(path)
    if not isinstance(node, dict):
        raise InputError(f"is no {group}: it is no mapping", file=path)
    check_names(node, path, group)
    if ".." in str(node.get("defaults")):
        raise InputError("names a file of another folder", file=path, field="defaults")
    name = "file." + re.sub(r"\W", "_", str(path))
    stored = OmegaConf.create(yaml_text(path), flags={"struct": False})
    ConfigStore.instance().store(group=group, name=name, node=stored)
    _files[name] = path.name
    return name


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise InputError(f"{override!r} is not of the form key=value")
        try:
            parsed.append(parser.parse_override(override))
        except HydraException as error:
            raise InputError(
                f"{override!r} cannot be read as key=value: an item of a list is <key>.<index>, "
                "a value with special characters stands in quotes"
            ) from error
        if parsed[-1].is_sweep_override():
            raise InputError(f"{override!r} gives several values; a list is [1,2]")
        if parsed[-1].value() == {} and not (parsed[-1].is_add() or parsed[-1].is_delete()):
            key = parsed[-1].key_or_group
            raise InputError(f"{override!r} takes nothing away: ~{key}.<key> does")
    return parsed


def _fault(
    parsed: Sequence[Override], groups: set[str], config_name: str, error: Exception
) -> InputError:
    """Why a command line does not compose: its first unknown key, or else what Hydra says."""
    added = [x for x in parsed if x.is_add() or x.is_force_add() or x.is_delete()]
    chosen = [x for x in parsed if x.key_or_group in groups and x not in added]
    try:
        declared = compose(config_name)
        for choice in chosen:
            if not choice.package and choice.key_or_group not in declared:
                return InputError(unknown_key(choice.key_or_group, map(str, declared)))
        texts = [str(x.input_line) for x in parsed if x in added or x in chosen]
        base = OmegaConf.to_container(compose(config_name, overrides=texts), resolve=False)
    except (HydraException, OmegaConfBaseException) as deeper:
        return InputError(_omegaconf_line(deeper))
    for override in parsed:
        if override not in added and not override.is_hydra_override():
            unknown = _unknown(override.key_or_group, base)
            if unknown is not None:
                return InputError(unknown)
    return InputError(_omegaconf_line(error))


def _unknown(key: str, node: object) -> str | None:
    """What is told of a key that is not in a config; None where it is, or is below a scalar."""
    walked: list[str] = []
    for part in key.split("."):
        if isinstance(node, list):
            node = {str(index): item for index, item in enumerate(node)}
        if not isinstance(node, Mapping):
            return None
        node = {str(name): item for name, item in node.items()}
        walked.append(part)
        if part not in node:
            return unknown_key(".".join(walked), (x for x in node if not x.startswith("_")))
        node = node[part]
    return None


def _omegaconf_line(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reference = _MISSING_REFERENCE.match(lines[0]) if key and lines else None
    if reference:
        group = str(key).partition(".")[0]
        return (
            f"config key '{key}': takes its value from '{reference[1]}', which is no key here: "
            f"this {group} is for another env or app"
        )
    if key:
        return f"config key '{key}': {lines[0] if lines else type(error).__name__}"
    told = [line for line in lines if not line.startswith(("full_key:", "object_type="))]
    line = " ".join(told) or type(error).__name__
    whole = line.startswith("Error merging override") and "=[" in line
    return f"{line}: is a mapping, whose keys are given as <key>.<name>=" if whole else line
