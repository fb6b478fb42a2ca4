"""What the apps take, read from their files and from `conf`: no app is imported for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import conf

EXPERIMENTS = __name__.rpartition(".run.")[0]  # where the apps lie
FLOORS = __name__.rpartition(f"{EXPERIMENTS.rpartition('.')[2]}.")[
    0
]  # before `envs`, `agents`, ...
CONFIG_MODULE = conf.__name__
RECIPE = "experiment"  # the group of what is chosen together
CONFIG_DIR = ("--config-dir", "-cd")
TRUST = "--trust"  # a dotted name of the user's own that files may have, too
STEP = frozenset({"bandwidth", "cost", "graphs", "hardware", "joint", "network", "partition",
                  "placement", "step"})  # fmt: skip
CLUSTER = frozenset({"cluster", "durations", "interference"})
_APPS = Path(__file__).parents[1]
_TARGET = re.compile(r"^_target_:\s*(\S+)", re.MULTILINE)
_OVERRIDE = "override /"
# What is built by its dotted name, in YAML and on a command line.
_NAMED = re.compile(r"""(?:_target_['"]?\s*[:=]|=)\s*['"]?((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)""")
_given: list[Path] = []  # folders of the user's own configs
_typed: list[str] = []  # the user's command line


@dataclass(frozen=True)
class AppForm:
    """An app: its config, what stands above its help, and the apps behind the same command.

    `variants` maps `group=<pattern>` to the app that runs where the command line chooses that.
    """

    name: str
    config_name: str
    about: str
    variants: Mapping[str, AppForm] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """One line: the first of what stands above its help."""
        return self.about.partition("\n")[0]


@dataclass(frozen=True)
class Key:
    """A key of a config as its YAML has it: the value as text, None for a mapping of keys."""

    name: str
    value: str | None
    comment: str


@dataclass(frozen=True)
class Choice:
    """A group that an app takes an option of, at `package` where it is not the group's name."""

    group: str
    package: str
    option: str
    comment: str


def app_names() -> list[str]:
    """The apps there are."""
    return sorted(path.stem for path in _APPS.glob("*.py") if path.stem != "__init__")


@cache
def app_form(name: str) -> AppForm:
    """What the file of an app says of it.

    Raises:
        ValueError: it does not call `main_of` with what its help is made of.
    """
    tree = ast.parse((_APPS / f"{name}.py").read_text(encoding="utf-8"))
    about = ast.get_docstring(tree) or ""
    calls = [x for x in ast.walk(tree) if isinstance(x, ast.Call)]
    for call in calls:
        if _called(call) == "main_of" and isinstance(call.args[0], ast.Constant):
            modules = _imported(tree)
            variants = dict(_variants(tree, modules, name, about))
            return AppForm(name, str(call.args[0].value), about, variants)
    raise ValueError(f"{name}.py does not say main_of(<config>, ...)")


def variant_of(patterns: Iterable[str], words: Sequence[str]) -> str | None:
    """The first `group=<pattern>` that a command line, or a recipe on it, chooses."""
    chosen = dict(word.split("=", 1) for word in with_recipes(words) if "=" in word)
    found = (x for x in patterns if chooses(chosen.get(x.partition("=")[0], ""), x))
    return next(found, None)


def chooses(option: str, pattern: str) -> bool:
    """Whether an option is one of `group=<pattern>`."""
    return fnmatchcase(option, pattern.partition("=")[2])


def with_recipes(arguments: Sequence[str]) -> list[str]:
    """The words of a command line; before them `group=option` of every recipe that it names.

    A recipe that is not there has none: composing the config tells.
    """
    named = [x.partition("=")[2] for x in arguments if x.lstrip("+").startswith(f"{RECIPE}=")]
    return [*(word for name in named for word in recipe_choices(name)), *arguments]


def recipe_choices(name: str) -> Iterator[str]:
    """`group=option` of the groups that a recipe overrides; those of the recipes in it first."""
    for item in _defaults(_document(option_file(RECIPE, name))):
        if isinstance(item, str) and item != "_self_":
            yield from recipe_choices(item)
        elif isinstance(item, Mapping):
            for group, option in item.items():
                if str(group).startswith(_OVERRIDE):
                    yield f"{str(group).removeprefix(_OVERRIDE)}={option}"


def config_folders() -> list[Path]:
    """Where configs lie: this project's, then those of `use_config_folders`."""
    return [Path(conf.__file__).parent, *_given]


def use_config_folders(given: Sequence[str | Path]) -> None:
    """Take options from these folders too, here and in the apps that this process starts."""
    _given[:] = [Path(folder).expanduser().absolute() for folder in given]


def use_command_line(words: Sequence[str]) -> None:
    """What these words name, the files of this run may name as well."""
    _typed[:] = words


def own_flags() -> list[str]:
    """The user's own folders and names, for the apps that this process starts."""
    folders = [f"{CONFIG_DIR[0]}={folder}" for folder in _given]
    return [*folders, *(word for word in _typed if word.startswith(TRUST))]


def names_in(text: str) -> set[str]:
    """The dotted names that a config, or a command line, has objects made of."""
    return set(_NAMED.findall(text))


def names_typed() -> set[str]:
    """Those of the user's command line."""
    return names_in("\n".join(_typed))


def command_words(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """(words, flags, folders of `--config-dir`) of a command line."""
    words: list[str] = []
    flags: list[str] = []
    folders: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name in (*CONFIG_DIR, TRUST):
            value = value if equals else next(rest, "")
        if name in CONFIG_DIR:
            folders.append(value)
        else:
            word = f"{TRUST}={value}" if name == TRUST else argument
            (flags if argument.startswith("-") else words).append(word)
    return words, flags, folders


def option_file(group: str, option: str) -> Path | None:
    """The file of an option."""
    if ".." in option:
        return None
    found = (folder / group / f"{option}.yaml" for folder in config_folders())
    return next((path for path in found if path.is_file()), None)


def options(group: str) -> list[str]:
    """The options of a group."""
    return sorted(
        {path.stem for folder in config_folders() for path in (folder / group).glob("*.yaml")}
    )


def choices(config_name: str) -> list[Choice]:
    """The groups that an app takes, in the order of its YAML."""
    path = config_folders()[0] / f"{config_name}.yaml"
    text = path.read_text(encoding="utf-8")
    comments = {key.name: key.comment for key in _keys(text, in_defaults=True)}
    found = []
    for item in _defaults(_document(path)):
        for name, option in item.items() if isinstance(item, Mapping) else ():
            if not str(name).startswith("override "):
                group, _, package = str(name).partition("@")
                found.append(Choice(group, package, str(option), comments.get(str(name), "")))
    return found


def plain_keys(config_name: str) -> set[str]:
    """The keys of an app's YAML that hold a value and not a mapping of keys."""
    document = _document(config_folders()[0] / f"{config_name}.yaml")
    return {str(key) for key, value in document.items() if not isinstance(value, Mapping)}


def kind_of(group: str, option: str) -> str | None:
    """What an option is for, by the module of its `_target_`; None: it names none of these.

    A planner, a step's model or environment is of the `step`, a scheduler of the `cluster`, what is
    learned with Ray of `rllib`.
    """
    path = option_file(group, option)
    found = _TARGET.search(path.read_text(encoding="utf-8")) if path is not None else None
    if found is None:
        return None
    floor, _, rest = found[1].removeprefix("meshwright.").partition(".")
    if floor not in {"agents", "envs", "experiments", "models"}:
        return None
    room = rest.partition(".")[0]
    return "step" if room in STEP else "cluster" if room in CLUSTER else room


def fitting(choice: Choice, others: Iterable[str] = ()) -> list[str]:
    """The options of a group that are of the same kind as the one an app chooses.

    `others` are `group=<pattern>` of other apps behind the same command, which take what is theirs.
    """
    wanted = kind_of(choice.group, choice.option)
    kinds = {name: kind_of(choice.group, name) for name in options(choice.group)}
    taken = [x for x in others if x.partition("=")[0] == choice.group and not choice.package]
    return [
        name
        for name, kind in kinds.items()
        if (wanted is None or kind is None or kind == wanted)
        and not any(chooses(name, pattern) for pattern in taken)
    ]


def fitting_of(app: AppForm, shown: AppForm, choice: Choice) -> list[str]:
    """The options that fit the app `shown`, which is `app` or one of its variants."""
    own = [pattern for pattern, variant in app.variants.items() if variant is shown]
    return fitting(choice, [x for x in app.variants if x not in own])


def form_of(config_name: str) -> AppForm:
    """The app whose config this is; for that of a variant, the app that it is behind.

    Raises:
        ValueError: there is none.
    """
    for form in map(app_form, app_names()):
        if config_name in {form.config_name, *(x.config_name for x in form.variants.values())}:
            return form
    raise ValueError(f"no app has conf/{config_name}.yaml")


def recipes(config_name: str) -> list[str]:
    """The recipes all of whose groups an app takes."""
    groups = {choice.group for choice in choices(config_name)}
    found = {
        name: {word.partition("=")[0] for word in recipe_choices(name)} for name in options(RECIPE)
    }
    inner = f"{RECIPE}/"  # of a recipe's own
    taken = {name: {x for x in named if not x.startswith(inner)} for name, named in found.items()}
    return [name for name, named in taken.items() if named and named <= groups]


def app_keys(config_name: str) -> list[Key]:
    """The keys of an app beside its groups, those that every app has last."""
    found = []
    for name in (config_name, "app"):
        text = (config_folders()[0] / f"{name}.yaml").read_text(encoding="utf-8")
        found += [key for key in _keys(text) if key.name.partition(".")[0] not in {"hydra"}]
    return found


def option_keys(group: str, option: str) -> list[Key]:
    """The keys of an option, without the group's name before them."""
    path = option_file(group, option)
    return [] if path is None else list(_keys(path.read_text(encoding="utf-8")))


def option_summary(group: str, option: str) -> str:
    """The comment that the file of an option begins with."""
    path = option_file(group, option)
    text = path.read_text(encoding="utf-8") if path is not None else ""
    lines = [x[1:].strip() for x in text.splitlines() if x.startswith("#")]
    return next((line for line in lines if not line.startswith("@package")), "")


def _keys(text: str, *, in_defaults: bool = False) -> Iterator[Key]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        lines = text.splitlines()
        for key, value in root.value:
            if (key.value == "defaults") == in_defaults:
                items = value.value if in_defaults else [_mapping(key, value)]
                for item in items:
                    if isinstance(item, yaml.MappingNode):
                        yield from _keys_of(item, "", lines)


def _mapping(key: yaml.Node, value: yaml.Node) -> yaml.MappingNode:
    return yaml.MappingNode("tag:yaml.org,2002:map", [(key, value)])


def _keys_of(node: yaml.MappingNode, prefix: str, lines: Sequence[str]) -> Iterator[Key]:
    for key, value in node.value:
        if key.value in {"_target_", "_partial_", "_recursive_", "_convert_"}:
            continue
        name = f"{prefix}{key.value}"
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style and bool(value.value)
        if nested:
            yield Key(name, None, _comment(lines, key.end_mark.line, key.end_mark.column + 1))
            yield from _keys_of(value, f"{name}.", lines)
        else:
            start, end = value.start_mark, value.end_mark
            if isinstance(value, yaml.SequenceNode) and not value.flow_style:
                yield Key(
                    name, "[...]", _comment(lines, key.end_mark.line, key.end_mark.column + 1)
                )
                continue
            shown = (
                lines[start.line][start.column :]
                if end.line > start.line
                else (lines[start.line][start.column : end.column])
            )
            yield Key(name, shown.strip() or "null", _comment(lines, end.line, end.column))


def _comment(lines: Sequence[str], line: int, column: int) -> str:
    """What stands after a value, and goes on in lines that are nothing else."""
    if line >= len(lines) or not lines[line][column:].strip().startswith("#"):
        return ""
    at = lines[line].index("#", column)
    words = [lines[line][at + 1 :].strip()]
    for following in lines[line + 1 :]:
        if not following.strip().startswith("#") or following.index("#") != at:
            break
        words.append(following.strip()[1:].strip())
    return " ".join(words)


def _document(path: Path | None) -> Any:
    return {} if path is None else yaml.safe_load(path.read_text(encoding="utf-8"))


def _defaults(document: Any) -> list[Any]:
    found = document.get("defaults", []) if isinstance(document, Mapping) else []
    return found if isinstance(found, list) else []


def _called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else None


def _imported(tree: ast.Module) -> dict[str, str]:
    """The module that each imported name of an app is of."""
    return {
        alias.asname or alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def _variants(
    tree: ast.Module, modules: Mapping[str, str], name: str, about: str
) -> Iterator[tuple[str, AppForm]]:
    """The entries of the mapping of `group=<pattern>` to `Variant(<config>, <schema>, <task>)`."""
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(value, ast.Dict):
            continue
        for key, call in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(call, ast.Call):
                assert isinstance(call.args[0], ast.Constant)
                task = call.args[2]
                module = modules.get(task.id) if isinstance(task, ast.Name) else None
                told = about if module is None else _docstring(module)
                yield str(key.value), AppForm(name, str(call.args[0].value), told)


def _docstring(module: str) -> str:
    path = _APPS.joinpath(*module.removeprefix(f"{EXPERIMENTS}.").split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
