"""Builds the wheel: the folders of the source tree become packages below `meshwright`.

In a checkout `envs`, `agents`, `models`, `experiments` and `conf` are top-level packages, so that
every tool works with no configuration. Installed so, they would take those names from everybody's
projects. The wheel is therefore built from a copy of the tree in which they lie in `meshwright/`,
and in which whatever names a module of the tree names it there: imports, strings in Python and
scalars in YAML that are the dotted name of a module of the tree or of something in it, and the
commands that texts show. An editable install and a source distribution have the tree as it is.

This is a build backend of its own, and not a command of setuptools, because setuptools then sees
one ordinary project: its file lists, metadata and records need no correction. It has a folder of
its own because a backend is imported before the project is there.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import yaml
from setuptools import build_meta
from setuptools.build_meta import (  # what a backend offers beside what is written here
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

NAMESPACE = "meshwright"
FLOORS = ("agents", "conf", "envs", "experiments", "models")
PROJECT_FILES = ("LICENSE", "README.md", "pyproject.toml")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:\w+)?")
COMMAND = re.compile(rb"(?<![\w.])(python -m )?experiments\.(\w+)(?![\w(])(\.\w)?")
TOLD = re.compile(rb"_target_: (\w+\.[\w.]*\w)")
Edit = tuple[int, int, bytes]  # begin, end, what stands there


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """PEP 517; the metadata is made anew, of the copy."""
    target = str(Path(wheel_directory).resolve())
    with _staged():
        return build_meta.build_wheel(target, config_settings)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """PEP 660, by a path: setuptools' own finder would load at every start of the interpreter."""
    settings = {"editable_mode": "compat", **(config_settings or {})}
    return build_meta.build_editable(wheel_directory, settings, metadata_directory)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    """PEP 517."""
    target = str(Path(metadata_directory).resolve())
    with _staged():
        return build_meta.prepare_metadata_for_build_wheel(target, config_settings)


@contextmanager
def _staged() -> Iterator[None]:
    """Work in a copy of the project that lies in the current folder."""
    with tempfile.TemporaryDirectory() as folder:
        stage(Path.cwd(), Path(folder))
        with chdir(folder):
            yield


def stage(source: Path, target: Path) -> None:
    """Write a project to `target` whose packages all lie in `meshwright`."""
    tree = Tree(source)
    for name in PROJECT_FILES:
        shutil.copy(source / name, target / name)
    (target / "MANIFEST.in").write_text(f"graft {NAMESPACE}\n")
    for file in tree.files():
        inner = file.relative_to(source)
        inside = inner if inner.parts[0] == NAMESPACE else Path(NAMESPACE, inner)
        path = target / inside
        path.parent.mkdir(parents=True, exist_ok=True)
        content = file.read_bytes()
        if file.suffix == ".py":
            content = tree.python(content, str(inner))
        elif file.suffix == ".yaml" and inner.parts[0] == "conf":
            content = tree.yaml(content)
        path.write_bytes(content)


class Tree:
    """A source tree, and what is written in it once its folders lie in the namespace."""

    def __init__(self, root: Path) -> None:
        self.root = root
        found = (root / "experiments").glob("*.py")
        self.apps = frozenset(path.stem.encode() for path in found if path.stem != "__init__")

    def files(self) -> Iterator[Path]:
        """Every module, and the data that `pyproject.toml` declares."""
        for name in (NAMESPACE, *FLOORS):
            yield from sorted((self.root / name).rglob("*.py"))
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        for package, patterns in project["tool"]["setuptools"]["package-data"].items():
            folder = self.root.joinpath(*package.split("."))
            found = {path for pattern in patterns for path in folder.glob(pattern)}
            yield from sorted(path for path in found if path.is_file() and path.suffix != ".py")

    def has(self, name: str) -> bool:
        """Whether a dotted name is of a module of the tree, or of something in one."""
        floor, _, rest = name.partition(".")
        path = self.root / floor / re.split(r"[.:]", rest)[0]
        return (
            floor in FLOORS and bool(rest) and (path.is_dir() or path.with_suffix(".py").exists())
        )

    def python(self, content: bytes, name: str) -> bytes:
        """A module with its imports, and its strings that are names, led into the namespace.

        Raises:
            ValueError: an import is written in a way that is not known here.
        """
        starts = [0]
        for line in content.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        edits: list[Edit] = []
        inside: set[ast.AST] = set()  # of f-strings, which have no places of their own before 3.12
        for node in ast.walk(ast.parse(content)):
            if node in inside or not isinstance(node, ast.stmt | ast.expr):
                inside.update(ast.iter_child_nodes(node) if node in inside else ())
                continue
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            if isinstance(node, ast.Import):
                edits += _import(node, begin, end)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and _floor(node.module):
                at = begin + len("from ")
                if not content[at:end].startswith(str(node.module).encode()):
                    raise ValueError(f"{name}, line {node.lineno}: an import of an unknown form")
                edits.append((at, at, f"{NAMESPACE}.".encode()))
            elif isinstance(node, ast.JoinedStr):
                inside.update(ast.iter_child_nodes(node))
                edits += self._named(content, begin, end)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if DOTTED.fullmatch(node.value) and self.has(node.value):
                    at = content.index(node.value.encode(), begin, end)
                    edits.append((at, at, f"{NAMESPACE}.".encode()))
                else:
                    edits += self._named(content, begin, end)
        return _edited(content, edits)

    def yaml(self, content: bytes) -> bytes:
        """A config with its scalars that are names led into the namespace, and its commands."""
        text = content.decode()
        edits: list[Edit] = []
        for node in _scalars(yaml.compose(text, Loader=yaml.SafeLoader)):
            if DOTTED.fullmatch(node.value) and self.has(node.value):
                at = len(text[: text.index(node.value, node.start_mark.index)].encode())
                edits.append((at, at, f"{NAMESPACE}.".encode()))
        return _edited(content, [*edits, *self._named(content, 0, len(content))])

    def _named(self, content: bytes, begin: int, end: int) -> Iterator[Edit]:
        """In texts: `python -m experiments.plan` is `meshwright plan`; what `_target_` is told."""
        for found in TOLD.finditer(content, begin, end):
            if self.has(found[1].decode()):
                yield found.start(1), found.start(1), f"{NAMESPACE}.".encode()
        for found in COMMAND.finditer(content, begin, end):
            if found[2] in self.apps and found[3] is None:
                yield found.start(), found.end(), f"{NAMESPACE} ".encode() + found[2]
            elif found[1] is not None:
                at = found.end(1)
                yield at, at, f"{NAMESPACE}.".encode()


def _floor(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in FLOORS


def _import(node: ast.Import, begin: int, end: int) -> Iterator[Edit]:
    """`import envs`, `import envs.cost` and both with `as`, binding what they bound before."""
    if not any(_floor(alias.name) for alias in node.names):
        return
    parts = []
    for alias in node.names:
        as_name = f" as {alias.asname}" if alias.asname else ""
        floor, _, below = alias.name.partition(".")
        if not _floor(alias.name):
            parts.append(f"import {alias.name}{as_name}")
        elif alias.asname:
            parts.append(f"import {NAMESPACE}.{alias.name}{as_name}")
        else:
            parts += [f"import {NAMESPACE}.{alias.name}"] if below else []
            parts.append(f"from {NAMESPACE} import {floor}")
    yield begin, end, "; ".join(dict.fromkeys(parts)).encode()


def _scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for item in pair:
                yield from _scalars(item)


def _edited(content: bytes, edits: list[Edit]) -> bytes:
    for begin, end, new in sorted(set(edits), reverse=True):
        content = content[:begin] + new + content[end:]
    return content
