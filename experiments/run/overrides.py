"""The command line against the config tree: every fault is one line, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from hydra import compose, initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.errors import InputError
from experiments.run.targets import check_seeds, check_targets, unknown_key

Schema = TypeVar("Schema")

CONFIG_MODULE = "conf"
CONFIG_FILE = "config.yaml"  # of a run folder
FILE_OPTION = "file"  # the option of a group that reads a file given by its `path`
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILE_SUFFIXES = (
    ".csv", ".gz", ".json", ".npz", ".parquet", ".txt", ".xls", ".yaml", ".yml",
)  # fmt: skip
_MISSING_REFERENCE = re.compile(r"Interpolation key '([^']+)' not found")


def check_command_line(
    arguments: Sequence[str], config_name: str, schema: type[Schema]
) -> tuple[list[str], Schema]:
    """The overrides in Hydra's own terms and the typed config they compose to.

    `group=<path>` becomes the group's `file` option; `group=<dotted name>` an object of anybody's
    package, named by `_target_`.

    Raises:
        InputError: an unknown key or option (naming the alternatives), a value of the wrong type
            or range, a missing key, a file that is not there.
    """
    with _config_tree():
        loader = GlobalHydra.instance().config_loader()
        groups = {group for group in loader.list_groups("") if group != "hydra"}
        overrides = [
            rewritten for argument in arguments for rewritten in _rewrite(argument, groups, loader)
        ]
        replaced = tuple(f"{x[1:]}." for x in overrides if x.startswith("~") and x[1:] in groups)
        overrides = [f"++{x}" if replaced and x.startswith(replaced) else x for x in overrides]
        parsed = _parse(overrides)
        choices = [x for x in parsed if x.key_or_group in groups or _extends(x)]
        declared = _declared(config_name) if choices else DictConfig({})
        for choice in choices:
            if not _extends(choice) and not choice.package and choice.key_or_group not in declared:
                raise InputError(unknown_key(choice.key_or_group, (str(key) for key in declared)))
        base = _compose(config_name, [_text(x) for x in choices])
        for override in parsed:
            _check_key(override, base)
        composed = _compose(config_name, overrides)
    return overrides, typed(composed, schema)


def claim_folder(overrides: Sequence[str], config_name: str) -> None:
    """Make the run folder that `overrides` compose to.

    Raises:
        InputError: it cannot be made, or another run lies in it that is not to be resumed.
    """
    with _config_tree():
        try:
            config = compose(config_name, overrides=list(overrides), return_hydra_config=True)
            folder = Path(str(OmegaConf.select(config, "hydra.run.dir")))
        except (HydraException, OmegaConfBaseException) as error:
            raise InputError(_omegaconf_line(error)) from error
    if (folder / CONFIG_FILE).exists() and OmegaConf.select(config, "resume") is None:
        raise InputError("holds a run already", file=folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"cannot be made a run folder ({error.strerror or error})"
        raise InputError(fault, file=folder) from error


def typed(config: DictConfig, schema: type[Schema]) -> Schema:
    """`config` as an object of the dataclass `schema`, interpolations resolved.

    Raises:
        InputError: a key is unknown, missing, of the wrong type or out of range.
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
        plain = OmegaConf.to_container(merged, resolve=True)
        check_targets(plain)
        check_seeds(plain)
        resolved = OmegaConf.merge(structured, OmegaConf.create(plain))
        built = OmegaConf.to_object(resolved)
    except OmegaConfBaseException as error:
        raise InputError(_omegaconf_line(error)) from error
    assert isinstance(built, schema)
    return built


def plain_config(config: object) -> dict[str, object]:
    """A typed config as plain mappings, lists and scalars."""
    container = OmegaConf.to_container(OmegaConf.structured(config), resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


@contextmanager
def _config_tree() -> Iterator[None]:
    """Hydra's global state on the config tree; afterwards it is as it was."""
    state = GlobalHydra.instance()
    outer = state.hydra
    state.clear()
    try:
        with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
            yield
    finally:
        state.hydra = outer


def _rewrite(argument: str, groups: set[str], loader: ConfigLoader) -> list[str]:
    key, equals, value = argument.partition("=")
    group, package = key.partition("@")[::2]
    if group not in groups or not equals:
        return [argument]
    options = sorted(loader.get_group_options(group))
    if value in options:
        return [argument]
    path = Path(value).expanduser()
    if "/" in value or path.is_file() or value.endswith(_FILE_SUFFIXES):
        if not path.is_file():
            fault = "is a folder, not a file" if path.is_dir() else "there is no such file"
            raise InputError(fault, file=value)
        if FILE_OPTION in options and not package:
            quoted = str(path.resolve()).replace("'", r"\'")
            return [f"{group}={FILE_OPTION}", f"{group}.path='{quoted}'"]
    elif _DOTTED.fullmatch(value) and not package:
        return [f"~{group}", f"+{group}._target_={value}"]
    raise InputError(f"unknown value {key}={value} (known: {', '.join(options)})")


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
    return parsed


def _extends(override: Override) -> bool:
    return override.is_add() or override.is_force_add() or override.is_delete()


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line


@cache
def _declared(config_name: str) -> DictConfig:
    """A config as it is written; for readers, within `_config_tree`."""
    return _compose(config_name, [])


def _compose(config_name: str, overrides: list[str]) -> DictConfig:
    try:
        return compose(config_name, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_omegaconf_line(error)) from error


def _check_key(override: Override, base: DictConfig) -> None:
    key = override.key_or_group
    if override.is_hydra_override() or _extends(override):
        return
    node: object = OmegaConf.to_container(base, resolve=False)
    walked: list[str] = []
    for part in key.split("."):
        if isinstance(node, list):
            node = {str(index): item for index, item in enumerate(node)}
        if not isinstance(node, Mapping):
            return
        node = {str(name): item for name, item in node.items()}
        walked.append(part)
        if part not in node:
            raise InputError(
                unknown_key(".".join(walked), (name for name in node if not name.startswith("_")))
            )
        node = node[part]


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
    return " ".join(told) or type(error).__name__


GROUP = "experiment"


def written_out(arguments: Sequence[str]) -> list[str]:
    """The words of a command line; before them `group=option` of every recipe that it names.

    A recipe that is not there has none: composing the config tells.
    """
    named = [argument.partition("=")[2] for argument in arguments if _names_a_recipe(argument)]
    return [*(word for name in named for word in _choices(name)), *arguments]


def _names_a_recipe(argument: str) -> bool:
    return argument.lstrip("+").startswith(f"{GROUP}=")


def _choices(name: str) -> Iterator[str]:
    """`group=option` of the groups that a recipe overrides; those of the recipes in it first."""
    file = files(CONFIG_MODULE).joinpath(GROUP, f"{name}.yaml")
    if not file.is_file():
        return
    recipe = OmegaConf.to_container(OmegaConf.create(file.read_text(encoding="utf-8")))
    defaults = recipe.get("defaults", []) if isinstance(recipe, dict) else []
    for item in defaults:
        if isinstance(item, str):
            yield from _choices(item)
        else:
            for group, option in item.items():
                if group.startswith("override /"):
                    yield f"{group.removeprefix('override /')}={option}"
