"""Run folders of former runs: their configs, and what a resumed run may change of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.errors import InputError, in_one_line, refused_in
from experiments.config.composing import CONFIG_FILE, saved_keys, typed
from experiments.config.targets import check_names, check_targets, targets_here
from experiments.config.yaml_files import yaml_document, yaml_text
from experiments.run.one_run import ENVIRONMENT_FILE
from models.artifacts import read_json_object

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Schema = TypeVar("Schema", bound="DataclassInstance")

CHANGEABLE = ("json=", "resume=", "hydra.")  # by any run that goes on


def saved_config(
    folder: str | Path,
    schema: type[Schema],
    changes: Sequence[str] = (),
    replaced: Sequence[str] = (),
) -> Schema:
    """The config a run was started with, changed by dotted `key=value` items.

    The caller has other values for the keys in `replaced`.

    Raises:
        InputError: the folder holds no run, or a run of another app or version.
    """
    path = Path(folder) / CONFIG_FILE
    keys = {change.partition("=")[0] for change in (*changes, *replaced)}
    with refused_in(path):
        try:
            loaded = OmegaConf.merge(_saved(path, keys), OmegaConf.from_dotlist(list(changes)))
            if not isinstance(loaded, DictConfig):
                raise InputError("is no mapping")
            config = typed(loaded, schema)
        except (OmegaConfBaseException, ValueError, OSError) as error:
            raise InputError(in_one_line(error)) from error
    return config


def _saved(path: Path, given: Collection[str] = ()) -> DictConfig | ListConfig:
    """What the config of a run says; keys of `given` are replaced by the command line."""
    if not path.is_file():
        raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=path.parent)
    check_names(yaml_document(path), path, given=given)
    return OmegaConf.create(yaml_text(path))


def resumed_config(
    folder: Path,
    config: Schema,
    overrides: Sequence[str],
    free: str = "training.",
    replaced: Sequence[str] = (),
) -> Schema:
    """The config of the run in `folder`, with what the command line may change when resuming.

    `free` is how the keys begin that it may; `replaced` as of `saved_config`.

    Raises:
        InputError: the command line changes more than that, or is not that of the run's app.
    """
    for override in overrides:
        if not override.startswith((free, *CHANGEABLE)):
            key = override.partition("=")[0]
            may = f"{free}<key>" if free.endswith(".") else free.rstrip("=")
            raise InputError(f"config key '{key}': a resumed run keeps it; only {may} may change")
    if (saved_keys(folder) or set()).difference(vars(config)):
        origin = read_json_object(folder / ENVIRONMENT_FILE).get("provenance")
        begun = origin.get("command") if isinstance(origin, dict) else "an unknown command"
        reason = f"the run was begun by another command, or another version: {begun}"
        raise InputError(f"config key 'resume': {reason}", file=folder)
    changes = [override for override in overrides if override.startswith(free)]
    saved = saved_config(folder, type(config), changes, replaced)
    arguments: dict[str, Any] = {name: getattr(config, name) for name in ("json", "resume")}
    return replace(saved, **arguments)


def saved_nodes(folder: str | Path, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The config nodes of `groups` as a run saved them.

    Raises:
        InputError: the folder holds no run, or one without such a group.
    """
    path = Path(folder) / CONFIG_FILE
    try:
        plain = targets_here(OmegaConf.to_container(_saved(path)))
    except (OmegaConfBaseException, ValueError, OSError) as error:
        raise InputError(in_one_line(error), file=path) from error
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        node = plain.get(group) if isinstance(plain, dict) else None
        if not isinstance(node, dict):
            raise InputError("is missing: the run did not train", file=path, field=group)
        check_targets(node, group)
        found[group] = node
    return found
