"""A command line against the configs: what it comes to, or why not, before anything is imported."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from hydra import __version__ as version
from hydra import compose
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from yaml import YAMLError

from envs.errors import InputError, meant, near
from experiments.config.command_words import (
    CONFIG_DIR,
    RECIPE,
    config_folders,
    quoted,
    use_config_folders,
)
from experiments.config.config_source import (
    SCHEME,
    fitting,
    job_config,
    job_keys,
    options,
    options_in,
    with_defaults,
)
from experiments.config.registry import GROUPS
from experiments.config.targets import (
    check_names,
    check_targets,
    targets_here,
    type_fault,
    unknown_key,
)
from experiments.config.yaml_files import yaml_document, yaml_text

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
_MISSING_REFERENCE = re.compile(r"Interpolation key '([^']+)' not found")
_files: dict[str, str] = {}  # of the user's, by the names that Hydra has them by
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
    return of_schema(composed_words(arguments, config_name), schema)


def of_schema(whole: DictConfig, schema: type[Schema]) -> Composed[Schema]:
    """What a composed config, with Hydra's own part, is in the form of a dataclass.

    Raises:
        InputError: as `check_command_line`.
    """
    own = OmegaConf.masked_copy(whole, [str(key) for key in whole if key != "hydra"])
    try:
        place = OmegaConf.select(whole, "hydra.run.dir")
    except OmegaConfBaseException as error:
        raise InputError(_omegaconf_line(error)) from error
    if not isinstance(place, str) or not place.strip():
        raise InputError(f"config key 'hydra.run.dir': {place!r} is no folder")
    config = typed(own, schema)
    chosen = whole.hydra.runtime.choices.items()
    choices = {str(key): _files.get(str(value), str(value)) for key, value in chosen}
    return Composed(config, Path(place), choices, list(whole.hydra.overrides.task))


def composed_words(arguments: Sequence[str], config_name: str) -> DictConfig:
    """The config of a command line with Hydra's own part; no class in it is imported.

    Raises:
        InputError: an unknown key, option or file.
    """
    with hydra_over_configs() as loader:
        overrides = hydra_words(arguments, loader, config_name)
        parsed = _parse(overrides)
        try:
            whole = compose(config_name, overrides=overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise _fault(parsed, _groups(loader), config_name, error) from error
        for key in plain_groups(loader, config_name):
            value = OmegaConf.select(whole, key)  # None: it is missing
            if isinstance(value, DictConfig) and list(value) == [PLAIN]:
                whole[key] = value[PLAIN]
    return whole


def answer_by_hydra(flags: Sequence[str], words: Sequence[str], config_name: str) -> None:
    """Print what Hydra's own flags ask for.

    `--cfg <part>`, with `--resolve`, `--info <part>`, `--version` or `--hydra-help`.

    Raises:
        InputError: as `composed_words`.
    """
    given = dict(flag.partition("=")[::2] for flag in flags)
    if "--version" in given:
        print(f"Hydra {version}")
        return
    about = next((given[x] for x in ("--cfg", "-c", "--info", "-i") if given.get(x)), "")
    part = about or next((word for word in words if "=" not in word), "")
    keys = [word for word in words if "=" in word]
    composed_words(keys, config_name)
    with hydra_over_configs() as loader:
        overrides, hydra = hydra_words(keys, loader, config_name), GlobalHydra.instance().hydra
        assert hydra is not None
        if "--hydra-help" in given:
            hydra.hydra_help(config_name, parser := get_args_parser(), parser.parse_args([]))
        elif {"--info", "-i"} & set(given):
            hydra.show_info(part or "all", config_name, overrides)
        else:
            resolve = "--resolve" in given
            hydra.show_cfg(config_name, overrides, part or "job", None, resolve)


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
        is_group = group in GROUPS or any((x / group).is_dir() for x in config_folders())
        is_file = value.endswith(_FILE_SUFFIXES) or os.path.isfile(value)
        if is_group and _DOTTED.fullmatch(value) and not is_file:  # which no option of conf is
            check_names({f"{key}._target_": value}, word)
        check_names({key: _parse([word])[0].value() if "_target_" in word else word}, word)


def take_config_folders(given: Sequence[str]) -> None:
    """Have the user's own config folders in the search path, after this project's.

    Raises:
        InputError: a folder is not there, or a file in it has the name of another's.
    """
    use_config_folders(given)
    folders = config_folders()
    for place, folder in enumerate(folders[1:], 1):
        if not folder.is_dir():
            raise InputError("there is no such folder", file=f"{CONFIG_DIR[0]} {folder}")
        for inner in sorted({file.parent for file in folder.rglob("*.yaml")}):
            group = str(inner.relative_to(folder))
            for name in options_in(folder, group):
                if any(name in options_in(before, group) for before in folders[:place]):
                    file = inner / f"{name}.yaml"
                    raise InputError("there is an option of this name already", file=file)


@contextmanager
def hydra_over_configs() -> Iterator[ConfigLoader]:
    """Hydra over all config folders, as with its own `--config-dir`."""
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    for folder in config_folders():
        path.append("command-line", f"{SCHEME}://{folder}")
    path.append("schema", "structured://")
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2("app", path).config_loader
    finally:
        GlobalHydra.instance().clear()


def hydra_words(arguments: Sequence[str], loader: ConfigLoader, config_name: str) -> list[str]:
    """A command line in Hydra's terms: options that are files or dotted names are described.

    A key of the app that is a group of other apps becomes a mapping, which Hydra takes for a key.

    Raises:
        InputError: there is no such option, file or name.
    """
    groups, plain = _groups(loader), plain_groups(loader, config_name)
    return [word for x in arguments for word in _option(x, config_name, groups, plain)]


def plain_groups(loader: ConfigLoader, config_name: str) -> set[str]:
    """The keys of a job that hold a value and are groups of other jobs."""
    own = job_config(config_name)
    return {x for x in _groups(loader) if x in own and not isinstance(own[x], Mapping)}


@lru_cache(1)
def _groups(loader: ConfigLoader) -> set[str]:
    return {*loader.list_groups("")} - {"hydra"}


def typed(config: DictConfig, schema: type[Schema]) -> Schema:
    """`config` as an object of the dataclass `schema`, interpolations resolved.

    Raises:
        InputError: a key is unknown, missing, of the wrong type or out of its declared bounds.
    """
    known = [field.name for field in fields(schema)]  # type: ignore[arg-type]
    if unknown := [str(key) for key in config if key not in known]:
        raise InputError(unknown_key(unknown[0], known))
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise InputError(_missing(missing[0]))
        plain = targets_here(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise InputError(_omegaconf_line(error)) from error
    found = validated(plain, schema)
    check_targets(plain)
    return found


def validated(plain: Mapping[str, Any], schema: type[Schema]) -> Schema:
    """Plain values as an object of a dataclass: strict, but for numbers where texts are asked for.

    Raises:
        InputError: naming the key.
    """
    adapter = TypeAdapter(schema)
    for _ in range(MOST_NAMED):
        try:
            return adapter.validate_json(json.dumps(plain), strict=True, extra="forbid")
        except ValidationError as error:
            fault = error.errors()[0]
            if fault["type"] == "string_type" and _as_text(plain, fault):
                continue
            raise InputError(_fault_of(error, schema)) from error
        except TypeError as error:
            raise InputError(f"the config is no plain data ({error})") from error
    raise InputError("texts are asked for, numbers are given")


def _as_text(plain: Any, fault: Mapping[str, Any]) -> bool:
    """Write a number as the text that is asked for, as of a queue that is called 103959."""
    *above, last = fault["loc"]
    node, value = plain, fault["input"]
    try:
        for part in above:
            node = node[part]
        if isinstance(value, bool) or not isinstance(value, int | float) or node[last] != value:
            return False
        node[last] = str(value)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _fault_of(error: ValidationError, schema: Any) -> str:
    """The message for the first fault of a config; a misspelt key comes before a missing one."""
    unknown = {"unexpected_keyword_argument", "extra_forbidden"}
    fault = min(error.errors(), key=lambda one: one["type"] not in unknown)
    parts = [str(x) for x in fault["loc"]]
    key = ".".join(parts)
    if fault["type"] in unknown:
        for part in parts[:-1]:
            schema = get_type_hints(schema).get(part) if is_dataclass(schema) else None
        known = fields(schema) if is_dataclass(schema) else ()
        return unknown_key(key, [field.name for field in known])
    if fault["type"] in {"missing", "missing_argument"}:
        return _missing(key)
    return type_fault(error, "")


def _missing(key: str) -> str:
    return f"config key '{key}' is missing: give {key}=<value>"


def saved_keys(folder: str | Path) -> set[str] | None:
    """The keys of the config in a run folder; None where there is none that can be read."""
    try:
        saved = OmegaConf.create(yaml_text(Path(folder) / CONFIG_FILE))
    except (InputError, ValueError, YAMLError):
        return None
    return {str(key) for key in saved} if isinstance(saved, DictConfig) else None


def plain_config(config: Any) -> dict[str, Any]:
    """A typed config as plain mappings, lists and scalars."""
    found: dict[str, Any] = TypeAdapter(type(config)).dump_python(config, mode="json")
    return found


def by_key(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a config, with its dotted key."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from by_key(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _option(argument: str, config_name: str, groups: set[str], plain: set[str]) -> list[str]:
    """The choice of an option by a file or by a dotted name; other words as they are."""
    key, equals, value = argument.partition("=")
    group, package = key.lstrip("+").partition("@")[::2]
    if group not in groups or not equals:
        return [argument]
    if group in plain:
        return [argument if value.startswith("{") else f"{key}={{{PLAIN}:{value}}}"]
    found = options(group)
    inner, _, name = value.rpartition("/")  # as of published/dgx1_v100
    if value in found or (inner and ".." not in value and name in options(f"{group}/{inner}")):
        return [argument]
    path = Path(value).expanduser()
    is_file = os.path.isfile(path)  # which does not fail where the name is too long for one
    if "/" in value or is_file or value.endswith(_FILE_SUFFIXES):
        if not is_file:
            fault = "is no regular file" if os.path.exists(path) else "there is no such file"
            fault = "is a folder, not a file" if os.path.isdir(path) else fault
            raise InputError(fault, file=value)
        if FILE_OPTION in found and not package:
            return [f"{group}={FILE_OPTION}", f"{group}.path={quoted(path.resolve())}"]
        if path.suffix in {".yaml", ".yml"} and group not in _RECIPES:
            return [f"{key}={_stored_file(path.resolve(), group)}"]
    elif _DOTTED.fullmatch(value):
        _store(group, value, {"_target_": value})
        return [argument]
    fit = fitting(group, config_name, package)
    known = list(dict.fromkeys([*near(value, found), *fit]))
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    names = f"{meant(value, found)}known: {', '.join(known[:MOST_NAMED])}{more}"
    raise InputError(f"unknown value {argument} ({names})")


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
    given = OmegaConf.to_container(OmegaConf.create(yaml_text(path)), resolve=False)
    assert isinstance(given, dict)
    whole = with_defaults({str(key): value for key, value in given.items()}, group)
    _store(group, name, whole)
    _files[name] = path.name
    return name


def _store(group: str, name: str, node: Mapping[str, Any]) -> None:
    """Have Hydra know one more option of a group, which takes any key."""
    stored = OmegaConf.create(dict(node), flags={"struct": False})
    ConfigStore.instance().store(group=group, name=name, node=stored)


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
    if (plugin := missing_plugin(error)) is not None:
        return plugin
    added = [x for x in parsed if x.is_add() or x.is_force_add() or x.is_delete()]
    chosen = [x for x in parsed if x.key_or_group in groups and x not in added]
    known = job_keys(config_name)
    for choice in chosen:
        if not choice.package and choice.key_or_group not in known:
            return InputError(unknown_key(choice.key_or_group, known))
    texts = [str(x.input_line) for x in parsed if x in added or x in chosen]
    try:
        base = OmegaConf.to_container(compose(config_name, overrides=texts), resolve=False)
    except (HydraException, OmegaConfBaseException) as deeper:
        return InputError(_omegaconf_line(deeper))
    for override in parsed:
        if override not in added and not override.is_hydra_override():
            unknown = _unknown(override.key_or_group, base)
            if unknown is not None:
                return InputError(unknown)
    return InputError(_omegaconf_line(error))


def missing_plugin(error: Exception) -> InputError | None:
    """The message where Hydra lacks a launcher or a sweeper that was asked for."""
    for group in ("hydra/launcher", "hydra/sweeper"):
        if f"{group}/" in str(error):
            return InputError(f"{group}: needs the extra 'sweep': pip install 'meshwright[sweep]'")
    return None


def _unknown(key: str, node: object) -> str | None:
    """The message for a key that is not in a config; None where it is, or is below a scalar."""
    parts = key.split(".")
    for number, part in enumerate(parts, 1):
        node = dict(enumerate(node)) if isinstance(node, list) else node
        if not isinstance(node, Mapping):
            return None
        inner = {str(name): item for name, item in node.items()}
        if part not in inner:
            known = (x for x in inner if not x.startswith("_"))
            return unknown_key(".".join(parts[:number]), known)
        node = inner[part]
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
    kept = [line for line in lines if not line.startswith(("full_key:", "object_type="))]
    line = " ".join(kept) or type(error).__name__
    whole = line.startswith("Error merging override") and "=[" in line
    return f"{line}: is a mapping, whose keys are given as <key>.<name>=" if whole else line
