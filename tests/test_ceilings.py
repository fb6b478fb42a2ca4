"""How large each folder may be, in tokens: the ceilings of `ceilings.json` only fall."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.paths import CONF, ROOT

CEILINGS: dict[str, int] = json.loads(Path(__file__).with_name("ceilings.json").read_text())
FLOORS = ("envs", "models", "agents", "experiments", "meshwright", "tests")
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
COMPILES = {"compiled", "compiled_inner", "pasted", "unchecked", "unchecked_inner"}
LONG, PER_TOKEN = 80, 8  # characters of a string that count one token, and of each further one


def tokens(source: str) -> int:
    """Tokens of a Python file but for docstrings, comments and layout."""
    count, begins = 0, True  # begins: here a string would be a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT:
            begins = begins or token.type not in {tokenize.COMMENT, tokenize.NL}
            continue
        if token.type != tokenize.STRING:
            count += 1
        elif not begins:
            count += 1 + max(0, len(token.string) - LONG) // PER_TOKEN
        begins = False
    return count


def compiled_lines(source: str) -> int:
    """Lines of the functions of a Python file that numba compiles."""
    if not any(f"@{name}" in source for name in COMPILES):
        return 0
    functions = (x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.FunctionDef))
    return sum(
        (x.end_lineno or x.lineno) - x.lineno + 1
        for x in functions
        if COMPILES & {ast.unparse(decorator).partition("(")[0] for decorator in x.decorator_list}
    )


def sizes() -> Counter[str]:
    """Tokens of each folder of a floor, and of the files that lie on the floor itself."""
    found: Counter[str] = Counter()
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*.py"):
            folder = path.relative_to(ROOT).parts
            depth = 3 if folder[:2] == ("experiments", "papers") else 2
            source = path.read_text()
            found["/".join(folder[:depth]) if len(folder) > depth else floor] += tokens(source)
            found["compiled lines"] += compiled_lines(source)
    papers = ROOT / "experiments" / "papers"
    found["YAML files"] = sum(1 for folder in (CONF, papers) for _ in folder.rglob("*.yaml"))
    return found


@pytest.mark.slow
def test_no_folder_is_larger_than_its_ceiling() -> None:
    """Whoever raises a ceiling in `ceilings.json` says in the same commit what was added."""
    large = {x: size for x, size in sizes().items() if size > CEILINGS.get(x, 0)}
    assert large == {}
