"""YAML that a user gives: read strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from envs.errors import InputError, in_one_line
from envs.files import read_content

MOST_NODES = 1_000_000  # of a YAML file, each counted as often as it is meant
MOST_DEEP = 32  # mappings and lists inside one another


def parts_of(node: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """(key, part) of plain data and of everything in it, what is outside first."""
    yield key, node
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from parts_of(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from parts_of(value, f"{key}[{index}]")


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
        reason = in_one_line(error).replace('in "<unicode string>", ', "in ")
        raise InputError(f"cannot be read ({reason})", file=path) from error
    return text


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
