"""Run folders of former runs: their configs, and what a resumed run may change of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.errors import InputError
from experiments.run.overrides import CONFIG_FILE, typed
from experiments.run.targets import check_targets, targets_here, yaml_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Schema = TypeVar("Schema", bound="DataclassInstance")

CHANGEABLE = ("json=", "resume=", "hydra.")  # by any run that goes on


def saved_config(folder: str | Path, schema: type[Schema], changes: Sequence[str] = ()) -> Schema:
    """The config a run was started with, changed by dotted `key=value` items.

    Raises:
        InputError: the folder holds no run, or a run of another app or version.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=folder)
    try:
        loaded = OmegaConf.merge(
            OmegaConf.create(yaml_text(path)), OmegaConf.from_dotlist(list(changes))
        )
        if not isinstance(loaded, DictConfig):
            raise InputError("is no mapping")
        return typed(loaded, schema)
    except InputError as error:
        raise InputError(error.message, file=path) from error
    except (OmegaConfBaseException, ValueError, OSError, yaml.YAMLError) as error:
        raise InputError(" ".join(str(error).split()), file=path) from error


def resumed_config(
    folder: Path, config: Schema, overrides: Sequence[str], free: str = "training."
) -> Schema:
    """The config of the run in `folder`, with what the command line may change when resuming.

    `free` is how the keys begin that it may.

    Raises:
        InputError: the command line changes more than that.
    """
    for override in overrides:
        if not override.startswith((free, *CHANGEABLE)):
            key = override.partition("=")[0]
            may = f"{free}<key>" if free.endswith(".") else free.rstrip("=")
            raise InputError(f"config key '{key}': a resumed run keeps it; only {may} may change")
    changes = [override for override in overrides if override.startswith(free)]
    saved = saved_config(folder, type(config), changes)
    arguments: dict[str, Any] = {name: getattr(config, name) for name in ("json", "resume")}
    return replace(saved, **arguments)


def saved_nodes(folder: str | Path, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The config nodes of `groups` as a run saved them.

    Raises:
        InputError: the folder holds no run, or one without such a group.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=folder)
    try:
        saved = OmegaConf.create(yaml_text(path))
        plain = targets_here(OmegaConf.to_container(saved, resolve=True))
    except (OmegaConfBaseException, ValueError, OSError, yaml.YAMLError) as error:
        raise InputError(" ".join(str(error).split()), file=path) from error
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        node = plain.get(group) if isinstance(plain, dict) else None
        if not isinstance(node, dict):
            raise InputError("is missing: the run did not train", file=path, field=group)
        check_targets(node, group)
        found[group] = node
    return found
