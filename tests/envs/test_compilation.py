"""`*_inner` kernels have no way in from Python: to call one there ends the process."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOORS = ("envs", "models", "agents", "experiments", "meshwright", "tests")
KERNELS = ("njit", "numba.njit", "compiled", "unchecked", "lean", "joined", "inlined", "pasted")
Name = tuple[str, str]  # module, function


def decorators(node: ast.AST) -> list[str]:
    """Those of a kernel, as text."""
    found = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return [text for text in found if text.startswith(KERNELS)]


def names_of(tree: ast.Module, module: str) -> dict[str, tuple[str, str | None]]:
    """What the names of a module stand for: (module, function) or (module, None)."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = (module, node.name)
    return found


def in_python(tree: ast.Module) -> Iterator[ast.AST]:
    """Everything that is not inside a kernel."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if not decorators(node):
            yield node
            left.extend(ast.iter_child_nodes(node))


@pytest.mark.slow
def test_only_kernels_call_inner_kernels() -> None:
    texts = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text("utf-8")
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*.py")
    }
    trees = {module: ast.parse(text) for module, text in texts.items() if "_inner" in text}
    inner = {
        (module, node.name)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(d.endswith("_inner") for d in decorators(node))
    }
    assert len(inner) > 100
    homes = {module for module, _ in inner}
    parents = {f"from {home.rpartition('.')[0]} import" for home in homes}
    called: set[tuple[Name, str]] = set()
    for module, text in texts.items():
        if module not in trees and not any(known in text for known in homes | parents):
            continue
        tree = trees.get(module) or ast.parse(text)
        names = names_of(tree, module)
        for node in in_python(tree):
            if isinstance(node, ast.Name):
                first, second = names.get(node.id, ("", None))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                base = names.get(node.value.id, ("", None))
                first, second = ".".join(filter(None, base)), node.attr
            else:
                continue
            if (first, second or "") in inner:
                called.add(((first, second or ""), module))
    assert not called


HEAD = "from envs.compilation import compiled\n"


def asked(folder: Path, call: str) -> subprocess.Popen[str]:
    """A process that calls `outer`, of the module of that name."""
    code = f"from outer import *; print({call}, sum(outer.stats.cache_hits.values()))"
    paths = os.pathsep.join([str(ROOT), str(folder)])
    command, env = [sys.executable, "-B", "-c", code], {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    """What its call gave, and whether the kernel was cached."""
    value, from_cache = process.communicate()[0].split()
    return f"{value} from the cache" if int(from_cache) else value


def outcome(folder: Path, call: str) -> str:
    return answer(asked(folder, call))


@pytest.mark.slow
def test_a_kernel_is_compiled_anew_where_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    """Or a constant of it. Both stand in files of their own; that of the caller stays as it was."""
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    text = HEAD + "LARGE = 2\n@compiled\ndef inner(x):\n    return x + 1\n"
    outer.write_text(
        HEAD + "from inner import inner\n@compiled\ndef outer(x):\n    return 10 * inner(x)\n"
    )
    inner.write_text(text)
    assert outcome(tmp_path, "outer(0)") == "10"
    assert outcome(tmp_path, "outer(0)") == "10 from the cache"
    inner.write_text(text := text.replace("x + 1", "x + LARGE"))
    assert outcome(tmp_path, "outer(0)") == "20"
    inner.write_text(text.replace("LARGE = 2", "LARGE = 3"))
    assert outcome(tmp_path, "outer(0)") == "30"


@pytest.mark.slow
def test_of_two_processes_one_compiles(tmp_path: Path) -> None:
    inner = "@compiled\ndef inner(x):\n    return np.sort(np.arange(x))[0]\n"
    outer = "@compiled\ndef outer(x):\n    return inner(x)\n"
    (tmp_path / "outer.py").write_text(f"import numpy as np\n{HEAD}{inner}{outer}")
    both = [asked(tmp_path, "outer(2)") for _ in range(2)]
    assert sorted(map(answer, both)) == ["0", "0 from the cache"]


@pytest.mark.slow
def test_what_is_cached_of_a_class_that_has_moved_is_compiled_anew(tmp_path: Path) -> None:
    """As after an update of this package, which leaves the caches of the kernels where they are."""
    table = "from typing import NamedTuple\nclass Table(NamedTuple):\n    x: int\n"
    kernel = "@compiled\ndef outer(table):\n    return table.x + 1\n"
    for home in ("here", "there"):
        (tmp_path / f"{home}.py").write_text(table)
        (tmp_path / "outer.py").write_text(f"{HEAD}from {home} import Table\n{kernel}")
        assert outcome(tmp_path, "outer(Table(1))") == "2"
        assert outcome(tmp_path, "outer(Table(1))") == "2 from the cache"
        (tmp_path / f"{home}.py").unlink()
