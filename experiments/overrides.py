"""The command line against the config tree: every fault is one line, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from experiments.targets import check_targets, unknown_key

Schema = TypeVar("Schema")

CONFIG_MODULE = "conf"
FILE_OPTION = "file"  # the option of a group that reads a file given by its `path`
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_FILE_SUFFIXES = (".json", ".gz", ".npz", ".txt", ".xls", ".yaml", ".yml")


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
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        groups = {group for group in loader.list_groups("") if group != "hydra"}
        overrides = [
            rewritten for argument in arguments for rewritten in _rewrite(argument, groups, loader)
        ]
        replaced = tuple(f"{x[1:]}." for x in overrides if x.startswith("~") and x[1:] in groups)
        overrides = [f"++{x}" if replaced and x.startswith(replaced) else x for x in overrides]
        parsed = _parse(overrides)
        choices = [x for x in parsed if x.key_or_group in groups or _extends(x)]
        base = _compose(config_name, [_text(x) for x in choices])
        for override in parsed:
            _check_key(override, base, groups)
        composed = _compose(config_name, overrides)
    return overrides, typed(composed, schema)


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


def _rewrite(argument: str, groups: set[str], loader: ConfigLoader) -> list[str]:
    group, equals, value = argument.partition("=")
    if group not in groups or not equals:
        return [argument]
    options = sorted(loader.get_group_options(group))
    if value in options or value == "null":
        return [argument]
    path = Path(value).expanduser()
    if "/" in value or path.is_file() or value.endswith(_FILE_SUFFIXES):
        if not path.is_file():
            raise InputError("there is no such file", file=value)
        if FILE_OPTION in options:
            quoted = str(path.resolve()).replace("'", r"\'")
            return [f"{group}={FILE_OPTION}", f"{group}.path='{quoted}'"]
    elif _DOTTED.fullmatch(value):
        return [f"~{group}", f"+{group}._target_={value}"]
    raise InputError(f"unknown value {group}={value} (known: {', '.join(options)})")


def _parse(overrides: Sequence[str]) -> list[Override]:
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise InputError(f"{override!r} is not of the form key=value")
    try:
        return list(OverridesParser.create().parse_overrides(list(overrides)))
    except HydraException as error:
        raise InputError(str(error).splitlines()[0]) from error


def _extends(override: Override) -> bool:
    return override.is_add() or override.is_force_add() or override.is_delete()


def _text(override: Override) -> str:
    assert override.input_line is not None
    return override.input_line


def _compose(config_name: str, overrides: list[str]) -> DictConfig:
    try:
        return compose(config_name, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(_omegaconf_line(error)) from error


def _check_key(override: Override, base: DictConfig, groups: set[str]) -> None:
    key = override.key_or_group
    if override.is_hydra_override() or _extends(override):
        return
    if key in groups and key not in base:
        raise InputError(unknown_key(key, (str(name) for name in base)))
    node: object = OmegaConf.to_container(base, resolve=False)
    walked: list[str] = []
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return
        walked.append(part)
        if part not in node:
            known = [str(name) for name in node if not str(name).startswith("_")]
            raise InputError(unknown_key(".".join(walked), known))
        node = node[part]


def _omegaconf_line(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"config key '{key}': {first}" if key else first
