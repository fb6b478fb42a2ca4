"""Anybody's object in a YAML file, described by `_target_` in the form of an option of `conf/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from envs.errors import InputError
from experiments.run.targets import build, check_targets


def object_in_file(path: str, group: str) -> Any:
    """The object that a YAML file describes, for the config group `group`.

    Raises:
        InputError: the file is no such description, or a key or value in it is wrong.
    """
    node = yaml_document(path)
    if not isinstance(node, dict) or "_target_" not in node:
        raise InputError(f"is no {group}: it has no '_target_'", file=path)
    try:
        check_targets(node, group)
        return build(node)
    except InputError as error:
        raise InputError(str(error), file=path) from error


def yaml_document(path: str) -> Any:
    """What a YAML file holds: mappings, lists and scalars.

    Raises:
        InputError: the file cannot be read, a key stands twice in a mapping, or a node contains
            itself.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        _check_keys(yaml.compose(text, Loader=yaml.SafeLoader), path, ())
        return yaml.safe_load(text)
    except (OSError, RecursionError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({' '.join(str(error).split())})", file=path) from error


def _check_keys(node: yaml.Node | None, path: str, above: tuple[yaml.Node, ...]) -> None:
    """Refuse a key that stands twice, of which YAML would keep the last, and a node in itself."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return
    line = f"line {node.start_mark.line + 1}"
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
        _check_keys(item, path, (*above, node))
