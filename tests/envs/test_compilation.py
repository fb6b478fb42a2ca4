"""Kernels that are marked `INNER` have no way in from Python: to call one there ends the process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FLOORS = ("envs", "models", "agents", "experiments", "meshwright", "tests")
Name = tuple[str, str]  # module, function


def decorators(node: ast.AST) -> list[str]:
    """Those of a kernel, as text."""
    found = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return [text for text in found if text.startswith(("njit", "numba.njit"))]


def names_of(tree: ast.Module, module: str) -> dict[str, tuple[str, str | None]]:
    """What the names of a module stand for: (module, function) or (module, None)."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname or a.name: (a.name, None) for a in node.names}
        elif isinstance(node, ast.FunctionDef) and node in tree.body:
            found[node.name] = (module, node.name)
    return found


def in_python(node: ast.AST) -> Iterator[ast.AST]:
    """Everything that is not inside a kernel."""
    for child in ast.iter_child_nodes(node):
        if not decorators(child):
            yield child
            yield from in_python(child)


def test_only_kernels_call_inner_kernels() -> None:
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }
    inner = {
        (module, node.name)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("INNER" in d for d in decorators(node))
    }
    assert len(inner) > 100
    called: set[tuple[Name, str]] = set()
    for module, tree in trees.items():
        names = names_of(tree, module)
        for node in in_python(tree):
            if isinstance(node, ast.Name):
                first, second = names.get(node.id, ("", None))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                base = names.get(node.value.id, ("", None))
                first, second = ".".join(part for part in base if part), node.attr
            else:
                continue
            if (first, second or "") in inner:
                called.add(((first, second or ""), module))
    assert not called
