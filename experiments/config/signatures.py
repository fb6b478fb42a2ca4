"""Constructors as their source says them: knobs, defaults, help. Nothing is imported for it.

A default stands in the signature of a class. To list it, to compose it into a config, or to say
what it means, the source is parsed: so `--help` and a misspelt key need no torch, Ray or numba.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

OURS = ("agents", "envs", "experiments", "models")  # packages of this project
DISTRIBUTION = "meshwright"
PREFIX = __name__.rpartition("experiments.")[0]  # before their names where the wheel is installed
NOTHING: Final = object()  # a default that no config can say, or none
SCALARS = re.compile(r"\b(bool|int|float|str|Path|Count|Positive|NonNegative|Share)\b")
_TREE = Path(__file__).parents[2]
_ENTRY = re.compile(r"^(?P<indent> +(?:\* )?|\* )(?P<names>`?\w+`?(?:, `?\w+`?)*): (?P<text>.*)$")
Function = ast.FunctionDef | ast.AsyncFunctionDef
DEFINED = ast.ClassDef | Function


@dataclass(frozen=True, eq=False)
class Definition:
    """A class or a function of this project."""

    module: str
    name: str  # within it, `ClusterEnv.of_trace` for example
    node: DEFINED

    @property
    def dotted(self) -> str:
        return f"{PREFIX}{self.module}.{self.name}"

    @property
    def about(self) -> str:
        """Its docstring."""
        return ast.get_docstring(self.node) or ""


@dataclass(frozen=True)
class Knob:
    """An argument of a constructor: its default, `NOTHING` if it has none a config can say."""

    name: str
    default: Any
    required: bool
    annotation: str
    help: str
    by_keyword: bool  # alone


def local(dotted: str) -> str:
    """A name of this project as it is in a checkout: in the wheel it begins with `meshwright.`."""
    return dotted.removeprefix(PREFIX or f"{DISTRIBUTION}.")


def is_ours(name: str) -> bool:
    """Whether a name, as in a checkout, is of a module of this project."""
    floor, *rest = name.split(".")
    path = _TREE / floor / (rest[0] if rest else "")
    return floor in OURS and bool(rest) and (path.is_dir() or path.with_suffix(".py").is_file())


@cache
def definition(dotted: str) -> Definition | None:
    """What a dotted name of this project stands for; None of another's, or if there is none."""
    parts = local(dotted).split(".")
    if parts[0] not in OURS:
        return None
    for end in range(len(parts) - 1, 0, -1):
        if _file(".".join(parts[:end])) is not None:
            return _within(".".join(parts[:end]), parts[end:])
    return None


@cache
def present(name: str) -> str:
    """What is called `name`, as in a checkout, by the module that it stands in now.

    Files of earlier versions may name another module: the nearest room around it that has
    something of that name has it once.
    """
    parts = name.split(".")
    if parts[0] not in OURS or definition(name) is not None:
        return name
    at = next((n for n, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    begins = re.compile(rf"^(class|def) {re.escape(parts[at])}\b", re.MULTILINE)
    around = [_TREE.joinpath(*parts[:end]) for end in range(at - 1, 0, -1)]
    for room in [*around[:-1], _TREE / "experiments" / "papers", *around[-1:]]:
        files = room.rglob("*.py")
        found = [x for x in files if begins.search(x.read_text(encoding="utf-8"))]
        if found:
            module = found[0].relative_to(_TREE).with_suffix("").parts
            return ".".join([*module, *parts[at:]]) if len(found) == 1 else name
    return name


@cache
def knobs(dotted: str) -> tuple[Knob, ...] | None:
    """The arguments of a class or a function; None if it is not one of ours, or takes any."""
    found = definition(dotted)
    return None if found is None else tuple(_knobs(found))


def described(dotted: str, *, partial: bool = False) -> dict[str, Any]:
    """The config node of an object with every default.

    `seed` and `placement` come from the run. What is required and can be typed is missing
    (`???`); where something else is required the program gives it later: the node is partial.
    """
    node = {"_target_": dotted, **({"_partial_": True} if partial else {})}
    found: dict[str, Any] = completed(node, alone=True)
    return found


def completed(node: Any, filled: frozenset[str] = frozenset(), *, alone: bool = False) -> Any:
    """A plain config in which every `_target_` mapping of ours has the defaults of its signature.

    Args:
        filled: keys of the outermost mapping that are given elsewhere.
        alone: nothing else is given: what is required is shown too.
    """
    if isinstance(node, list):
        return [completed(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: completed(value) for key, value in node.items()}
    target = node.get("_target_")
    taken = knobs(target) if isinstance(target, str) and "_args_" not in node else None
    # of what is partial the caller gives what stands before the `*`
    by_keyword = found.get("_partial_") is True and any(knob.by_keyword for knob in taken or ())
    for knob in taken or ():
        if knob.name in found or knob.name in filled or (by_keyword and not knob.by_keyword):
            continue
        if knob.name == "seed" and "int" in knob.annotation:
            found["seed"] = "${seed}"
        elif knob.name == "placement" and "PlacementRule" in knob.annotation:
            found["placement"] = "${placement}"
        elif knob.default is not NOTHING:
            found[knob.name] = completed(knob.default)
        elif knob.required and alone and SCALARS.search(knob.annotation):
            found[knob.name] = "???"
        elif knob.required and alone:
            found["_partial_"] = True
    return found


def module_about(module: str) -> str:
    """The docstring of a module of ours."""
    return ast.get_docstring(_tree(local(module))) or ""


def _file(module: str) -> Path | None:
    path = _TREE.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


@cache
def _source(module: str) -> str:
    path = _file(module)
    assert path is not None
    return path.read_text(encoding="utf-8")


@cache
def _lines(module: str) -> list[str]:
    return _source(module).splitlines()


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _names(module: str) -> dict[str, ast.AST]:
    """What the names at the top of a module stand for: definitions, imports, constants."""
    found: dict[str, ast.AST] = {}
    for node in _tree(module).body:
        if isinstance(node, DEFINED):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                found |= {name.id: value for name, value in pairs if isinstance(name, ast.Name)}
    return found


def _original(node: ast.ImportFrom, name: str) -> tuple[str, str]:
    """The module and the name there of what an import calls `name`."""
    found = next(x.name for x in node.names if name in (x.asname, x.name))
    return local(str(node.module)), found


def _within(module: str, parts: list[str]) -> Definition | None:
    """The definition that names in a module lead to, through imports."""
    node = _names(module).get(parts[0])
    if isinstance(node, ast.ImportFrom):
        return definition(".".join([*_original(node, parts[0]), *parts[1:]]))
    for name in parts[1:]:
        inner = node.body if isinstance(node, ast.ClassDef) else ()
        same = (x for x in inner if isinstance(x, DEFINED) and x.name == name)
        node = next(same, None)
    return Definition(module, ".".join(parts), node) if isinstance(node, DEFINED) else None


def _bases(found: Definition) -> Iterator[Definition]:
    for base in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and (above := _within(found.module, [name.id])) is not None:
            yield above


def _knobs(found: Definition) -> Iterator[Knob]:
    node = found.node
    if isinstance(node, Function):
        bound = any(_called(x) == "classmethod" for x in node.decorator_list)
        yield from _arguments(found, node, skipped=int(bound), about=found.about)
        return
    inits = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
    if inits:
        yield from _arguments(found, inits[0], skipped=1, about="\n".join(_docs(found)))
    elif {"dataclass", "NamedTuple"} & set(map(_called, (*node.decorator_list, *node.bases))):
        own = {knob.name: knob for knob in _fields(found)}
        for base in _bases(found):
            yield from (knob for knob in _knobs(base) if knob.name not in own)
        yield from own.values()
    else:
        for base in _bases(found):
            if inherited := list(_knobs(base)):
                yield from inherited
                return


def _docs(found: Definition) -> Iterator[str]:
    yield found.about
    for base in _bases(found):
        yield from _docs(base)


def _arguments(found: Definition, node: Function, skipped: int, about: str) -> Iterator[Knob]:
    given = node.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs][skipped:]
    values = [*given.defaults, *given.kw_defaults]
    defaults = [None] * (len(arguments) - len(values)) + values
    for argument, default in zip(arguments, defaults, strict=True):
        line, alone = argument.lineno, argument in given.kwonlyargs
        yield _knob(found, argument.arg, argument.annotation, default, about, line, alone)
    if given.kwarg is not None:
        yield from _handed_on(found, node, {argument.arg for argument in arguments})


def _handed_on(found: Definition, node: Function, given: set[str]) -> Iterator[Knob]:
    """The knobs that a function hands on as `**arguments`, by keyword, to what it calls."""
    for call in (x for x in ast.walk(node) if isinstance(x, ast.Call)):
        callee = ast.unparse(call.func)
        owner = found.name.rpartition(".")[0] if callee == "cls" else callee
        target = _within(found.module, owner.split("."))
        if target is None or all(word.arg is not None for word in call.keywords):
            continue
        said: set[object] = {word.arg for word in call.keywords}
        said |= {x.value for x in ast.walk(call) if isinstance(x, ast.Constant)}
        for knob in _knobs(target):
            if knob.by_keyword and not knob.required and knob.name not in given | said:
                yield knob


def _fields(found: Definition) -> Iterator[Knob]:
    assert isinstance(found.node, ast.ClassDef)
    about = "\n".join(_docs(found))
    for item in found.node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        default = item.value
        if "ClassVar" in ast.unparse(item.annotation):
            continue
        if isinstance(default, ast.Call) and _called(default.func) == "field":
            said = {word.arg: word.value for word in default.keywords}
            if isinstance(said.get("init"), ast.Constant):
                continue
            made = said.get("default_factory")
            default = said.get("default")
            if made is not None:
                default = made.body if isinstance(made, ast.Lambda) else ast.Call(made, [], [])
        yield _knob(found, item.target.id, item.annotation, default, about, item.lineno)


def _knob(
    found: Definition, name: str, hint: ast.expr | None, value: ast.expr | None, about: str,
    line: int, by_keyword: bool = False,
) -> Knob:  # fmt: skip
    default = NOTHING if value is None else _value(value, found)
    written = "" if hint is None else ast.unparse(hint)
    text = _entries(about).get(name) or _comment(found.module, line)
    return Knob(name, default, value is None, written, text, by_keyword)


@cache
def _entries(about: str) -> dict[str, str]:
    """What the `name: text` entries of a docstring's lists say; of a name said twice, the first."""
    found: dict[str, str] = {}
    names: list[str] = []
    indent = -1
    for line in inspect.cleandoc(about).splitlines():
        if entry := _ENTRY.match(line):
            names = [name.strip("` ") for name in entry["names"].split(",")]
            indent = len(entry["indent"])
            for name in names:
                found.setdefault(name, entry["text"].strip())
        elif names and line.strip() and len(line) - len(line.lstrip()) > indent:
            for name in names:
                found[name] += f" {line.strip()}"
        else:
            names = []
    return found


def _comment(module: str, line: int) -> str:
    """What stands behind an argument or a field on its line, or in the lines above it."""
    lines = _lines(module)
    _, _, comment = lines[line - 1].partition("  # ")
    if comment and not comment.startswith(("noqa", "type:", "fmt:")):
        return comment.strip()
    before = (lines[at].strip() for at in range(line - 2, -1, -1))
    above = takewhile(lambda text: text.startswith("# "), before)
    return " ".join(text[2:] for text in reversed(list(above)))


def _called(node: ast.expr) -> str:
    """The last name of a decorator, a base or what is called."""
    node = node.func if isinstance(node, ast.Call) else node
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _value(node: ast.AST, found: Definition) -> Any:  # noqa: PLR0911
    """What an expression comes to in a config; `NOTHING` where no config can say it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str | int | float | None) else NOTHING
    if isinstance(node, ast.Tuple | ast.List):
        items = [_value(item, found) for item in node.elts]
        return NOTHING if NOTHING in items else items
    if isinstance(node, ast.Dict):
        keys, values = (
            [NOTHING if item is None else _value(item, found) for item in side]
            for side in (node.keys, node.values)
        )
        return NOTHING if NOTHING in (*keys, *values) else dict(zip(keys, values, strict=True))
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        try:
            return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
        except NameError:
            return NOTHING
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(node, found)
    return _made(node, found) if isinstance(node, ast.Call) else NOTHING


def _named(node: ast.Name | ast.Attribute, found: Definition) -> Any:
    """A constant, or a class or function that is to be called later."""
    if _called(node) == "inf":
        return float("inf")
    target = _within(found.module, ast.unparse(node).split("."))
    if target is not None:
        return {"_target_": target.dotted, "_partial_": True}
    value = _names(found.module).get(_called(node))
    if isinstance(value, ast.ImportFrom):
        module, name = _original(value, _called(node))
        if _file(module) is None:
            return NOTHING
        value, found = _names(module).get(name), Definition(module, name, found.node)
    return NOTHING if value is None or isinstance(value, ast.ImportFrom) else _value(value, found)


def _made(node: ast.Call, found: Definition) -> Any:
    """An object of ours; of the rest `tuple`, `dict`, `Path`, `MappingProxyType` and `partial`."""
    name, inner = _called(node.func), list(node.args)
    if name in {"tuple", "list", "dict"} and not inner and not node.keywords:
        return {} if name == "dict" else []
    if name in {"MappingProxyType", "Path", "tuple", "list", "frozendict"} and len(inner) == 1:
        return _value(inner[0], found)
    is_partial = name == "partial" and bool(inner)
    callee = inner.pop(0) if is_partial else node.func
    target = _within(found.module, ast.unparse(callee).split("."))
    taken = None if target is None else knobs(target.dotted)
    if target is None or taken is None:
        return NOTHING
    words = {knob.name: value for knob, value in zip(taken, inner, strict=False)}
    words |= {word.arg: word.value for word in node.keywords if word.arg}
    values = {key: _value(value, found) for key, value in words.items()}
    partial = {"_partial_": True} if is_partial else {}
    whole = {"_target_": target.dotted, **partial, **values}
    return NOTHING if NOTHING in values.values() else whole
