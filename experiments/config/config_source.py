"""Where Hydra finds configs: files of a folder, and names of the registry, with their defaults.

A plugin by Hydra's public API. In every file each `_target_` mapping gets the defaults of its
signature, so that files say only what differs; a name without a file is a row of `_table.yaml` in
its group's folder, or of `experiments.config.registry`. The config of a command has the defaults of
its dataclass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from experiments.config.command_words import config_folders
from experiments.config.papers import PAPERS
from experiments.config.registry import (
    GROUPS,
    PARTIAL,
    RECORDS,
    arguments_of,
    dotted,
)
from experiments.config.signatures import NOTHING, OURS, completed, described, knobs, local
from experiments.config.verbs import JOBS

SCHEME = "meshwright"
TABLE = "_table"  # a file in a group's shipped folder: options by their names
SHIPPED = config_folders()[0]
STEP = frozenset({"bandwidth", "cost", "graphs", "hardware", "joint", "network", "partition",
                  "placement", "step"})  # fmt: skip
CLUSTER = frozenset({"cluster", "durations", "interference"})
_TARGET = re.compile(r"^_target_:\s*(\S+)", re.MULTILINE)
_INHERITED = re.compile(r"^  - (?!_self_)(\w+) *(?:#.*)?$", re.MULTILINE)


_shipped: dict[str, dict[str, Any]] = {}  # configs that were read, by their paths


@cache
def _rows(table: Path) -> Any:
    return yaml.load(table.read_text(encoding="utf-8"), yaml.CSafeLoader)


def options_in(folder: Path, group: str) -> dict[str, Any]:
    """The options of a group in a folder of configs: the file of each.

    In the shipped folder also files of papers, rows of the group's table and of the registry.
    """
    files: dict[str, Any] = {file.stem: file for file in (folder / group).glob("*.yaml")}
    if folder != SHIPPED:
        return files
    files |= {file.stem: file for paper in PAPERS for file in (paper.conf / group).glob("*.yaml")}
    table = files.pop(TABLE, None)
    return {**GROUPS.get(group, {}), **(_rows(table) if table else {}), **files}


class CompletedConfigs(ConfigSource):
    """Configs of a folder; for the shipped one with the registry's names."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """A config with its defaults.

        Raises:
            ConfigLoadError: there is none.
        """
        file, header = self._found(config_path), dict[str, str | None](package=None)
        if isinstance(file, Path):
            header = self._get_header_dict(file.read_text(encoding="utf-8"))
        found = OmegaConf.create(self.node(config_path))
        return ConfigResult(self.provider, f"{SCHEME}://{self.path}", found, header)

    def node(self, config_path: str) -> dict[str, Any]:
        """The same as plain data.

        Raises:
            ConfigLoadError: there is none.
        """
        if self._ours and config_path in _shipped:
            return deepcopy(_shipped[config_path])
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        found_at = node = self._found(config_path)
        if isinstance(node, Path):
            node = OmegaConf.to_container(OmegaConf.load(node), resolve=False)
        if node is None:
            raise ConfigLoadError(f"there is no config {config_path!r}")
        if not isinstance(node, dict):
            raise ConfigLoadError(f"{found_at} is no mapping")
        found = with_defaults(node, group)
        found = found if group else _with_schema(found, name)
        if self._ours:
            _shipped[config_path] = deepcopy(found)
        return found

    def available(self) -> bool:
        return Path(self.path).is_dir()

    def is_group(self, config_path: str) -> bool:
        path = config_path.rstrip("/")
        return (Path(self.path) / path).is_dir() or (self._ours and path in GROUPS)

    def is_config(self, config_path: str) -> bool:
        return self._found(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Groups and configs below a group."""
        group, folder = config_path.rstrip("/"), Path(self.path)
        inside = (folder / group).iterdir() if (folder / group).is_dir() else ()
        groups = {x.name for x in inside if x.is_dir() and x.name != "__pycache__"}
        groups |= set(GROUPS) if self._ours and not group else set()
        kept = {ObjectType.GROUP: groups, ObjectType.CONFIG: {*options_in(folder, group)}}
        return sorted(kept[results_filter] if results_filter else groups.union(*kept.values()))

    @property
    def _ours(self) -> bool:
        return Path(self.path) == SHIPPED

    def _found(self, config_path: str) -> Any:
        """The file of a config, its row in a table, or its node; None: there is none."""
        path = config_path.removesuffix(".yaml")
        job = JOBS.get(path)
        group, _, name = (path if job is None else job.file).rpartition("/")
        found = options_in(Path(self.path), group).get(name)
        if isinstance(found, str):
            return _described(found, name)
        return {} if found is None and job is not None and self._ours else found


def _described(row: str, name: str) -> dict[str, Any]:
    """The node of a name that is a row of the registry."""
    partial = row.startswith(PARTIAL)
    node = described(dotted(row), partial=partial)
    given = {key: described(target) for key, target in arguments_of(row).items()}
    if given and not partial:
        node.pop("_partial_", None)  # which it was for want of these
    node |= given
    return node | ({"name": name} if node.get("name") == "???" else {})


def with_defaults(node: Mapping[str, Any], group: str) -> dict[str, Any]:
    """A config of a group with what it leaves to signatures."""
    found: dict[str, Any] = completed(node, _elsewhere(node))
    goes_on = any(isinstance(x, str) and x != "_self_" for x in node.get("defaults") or ())
    if group not in RECORDS or goes_on:
        return found
    return {**_record(RECORDS[group]), **found}


SHIPPED_CONFIGS = CompletedConfigs("main", f"{SCHEME}://{SHIPPED}")


@dataclass(frozen=True)
class Choice:
    """A group that a job takes an option of, at `package` where it is not the group's name."""

    group: str
    package: str
    option: str

    @property
    def word(self) -> str:
        """What stands before `=` on a command line."""
        return f"{self.group}@{self.package}" if self.package else self.group


def job_config(name: str) -> dict[str, Any]:
    """The config of a job as it is before any option is chosen, with its defaults list."""
    return SHIPPED_CONFIGS.node(name)


def choices(name: str) -> list[Choice]:
    """The groups that a job takes, in the order of its config."""
    found = []
    for item in job_config(name)["defaults"]:
        for word, option in item.items() if isinstance(item, Mapping) else ():
            if not str(word).startswith("override "):
                group, _, package = str(word).removeprefix("/").partition("@")
                found.append(Choice(group, package, str(option)))
    return found


def job_keys(name: str) -> list[str]:
    """The keys of a job's config, those of its groups among them."""
    groups = (choice.package.partition(".")[0] or choice.group for choice in choices(name))
    return sorted({*groups, *job_config(name), "json", "seed"} - {"defaults", "hydra"})


def options(group: str) -> list[str]:
    """The names in a group."""
    return sorted({name for folder in config_folders() for name in options_in(folder, group)})


def fitting(group: str, job: str, package: str = "") -> list[str]:
    """The options of a group that are of the same kind as the one that a job has at `package`."""
    same = {choice.package: choice.option for choice in reversed(choices(job))
            if choice.group == group}  # fmt: skip
    own = same.get(package, next(iter(reversed(same.values())), None))
    wanted = None if own is None else _kind(group, own)
    kinds = {name: _kind(group, name) for name in options(group)}
    return [name for name, kind in kinds.items() if None in (wanted, kind) or kind == wanted]


def _kind(group: str, option: str) -> str | None:
    """What an option is for, by the room of its class; None: it names none of ours.

    A planner, a step's model or environment is of the `step`, a scheduler of the `cluster`, a
    learner of `rllib`; a class of a file that lies in no room, as `models/perceptron.py`, of its
    floor.
    """
    target = None
    for found in (options_in(folder, group).get(option) for folder in config_folders()):
        if isinstance(found, Path):
            text = found.read_text(encoding="utf-8")
            named, inherited = _TARGET.search(text), _INHERITED.search(text)
            if named is None and inherited is not None:
                return _kind(group, inherited[1])
            target = None if named is None else named[1]
        elif found is not None:
            target = dotted(found) if isinstance(found, str) else found.get("_target_")
    floor, _, rest = local(target or "").partition(".")
    if floor not in OURS:
        return None
    room = "step" if rest.startswith("rllib.step.") else rest.partition(".")[0]
    shared = floor if (SHIPPED.parent / floor / f"{room}.py").is_file() else room
    return "step" if room in STEP else "cluster" if room in CLUSTER else shared


def _elsewhere(node: Mapping[str, Any]) -> frozenset[str]:
    """The keys that a config's own defaults list fills; a file it goes on from is none."""
    lists = (item for item in node.get("defaults") or () if isinstance(item, Mapping))
    return frozenset(
        str(word).removeprefix("/").rpartition("@")[2].partition(".")[0]
        for item in lists
        for word in item
    )


def _record(schema: str) -> dict[str, Any]:
    """The defaults of a dataclass as keys of a config; `???` where it has none."""
    found: dict[str, Any] = {}
    for knob in knobs(schema) or ():
        if knob.name == "seed":
            found["seed"] = "${seed}"
        elif knob.default is not NOTHING:
            found[knob.name] = completed(knob.default)
            if isinstance(knob.default, dict):  # a part of the config, and no object
                found[knob.name].pop("_target_", None)
        elif knob.required:
            found[knob.name] = "???"
    return found


def _with_schema(node: dict[str, Any], name: str) -> dict[str, Any]:
    """The config of a command: what every command has, and the defaults of its dataclass."""
    if name not in JOBS:
        return node
    given = list(node.pop("defaults", []))
    taken = _elsewhere({"defaults": given}) | {"seed", "json"}  # of every command
    values = {key: x for key, x in _record(JOBS[name].schema).items() if key not in taken}
    quiet = [{f"override hydra/{log}_logging": "none"} for log in ("job", "hydra")]
    last = [] if "_self_" in given else ["_self_"]
    verb = JOBS[name].verb
    folder = "${run_folder:" + verb + (",${resume}}" if "resume" in values else "}")
    hydra = {"job": {"name": verb}, "run": {"dir": folder}}
    return {"defaults": ["app", *given, *quiet, *last], "hydra": hydra, **values, **node}


Plugins.instance().register(CompletedConfigs)
