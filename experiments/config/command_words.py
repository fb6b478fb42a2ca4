"""The words of a command line: keys, flags, folders of configs, recipes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import yaml

import conf

RECIPE = "experiment"  # the group of what is chosen together
CONFIG_DIR = ("--config-dir", "-cd")
TRUST = "--trust"  # a dotted name of the user's own that files may have, too
CONFIG_MODULE = conf.__name__
_OVERRIDE = "override /"
# What is built by its dotted name, in YAML and on a command line.
_NAMED = re.compile(r"""(?:_target_['"]?\s*[:=]|=)\s*['"]?((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)""")
_given: list[Path] = []  # folders of the user's own configs
_typed: list[str] = []  # the user's command line


def listed(key: str | None, arguments: Sequence[str]) -> list[str]:
    """A command line whose words without a key, and folders, are the list of `key`."""
    if key is None:
        return list(arguments)
    words, flags, configs = command_words(arguments)
    items = [x for x in words if "=" not in x or Path(x).is_dir()]
    others = [x for x in words if x not in items]
    return [*_as_list(key, items), *others, *flags, *_folder_flags(configs)]


def of_cells(arguments: Sequence[str], own: tuple[str, ...]) -> list[str]:
    """The command line of a study: words of its cells become the list `words`."""
    words, flags, configs = command_words(arguments)
    mine = [x for x in words if x.lstrip("+~").startswith(own) or "@study." in x.partition("=")[0]]
    theirs = [x for x in words if x not in mine]
    return [*mine, *_as_list("words", theirs), *flags, *_folder_flags(configs)]


def _as_list(key: str, items: Sequence[str]) -> list[str]:
    """The word that gives `key` these items, if there are any."""
    return [f"{key}=[{','.join(map(quoted, items))}]"] if items else []


def _folder_flags(folders: Iterable[str | Path]) -> list[str]:
    return [f"{CONFIG_DIR[0]}={folder}" for folder in folders]


def with_recipes(arguments: Sequence[str]) -> list[str]:
    """The words of a command line; before them `group=option` of every recipe that it names.

    A recipe that is not there has none: composing the config tells.
    """
    named = [x.partition("=")[2] for x in arguments if x.lstrip("+").startswith(f"{RECIPE}=")]
    return [*(word for name in named for word in recipe_choices(name)), *arguments]


def recipe_choices(name: str) -> Iterator[str]:
    """`group=option` of the groups that a recipe overrides; those of the recipes in it first."""
    files = [folder / RECIPE / f"{name}.yaml" for folder in config_folders() if ".." not in name]
    file = next((file for file in files if file.is_file()), None)
    found = None if file is None else yaml.safe_load(file.read_text(encoding="utf-8"))
    items = found.get("defaults") if isinstance(found, Mapping) else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, str) and item != "_self_":
            yield from recipe_choices(item)
        for group, option in item.items() if isinstance(item, Mapping) else ():
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


def use_flags(flags: Sequence[str]) -> None:
    """Take the `own_flags` of the process that started this one."""
    _, names, folders = command_words(flags)
    use_config_folders(folders)
    use_command_line(names)


def own_flags() -> list[str]:
    """The user's own folders and names, for the apps that this process starts."""
    return [*_folder_flags(_given), *(word for word in _typed if word.startswith(TRUST))]


def quoted(text: str | Path) -> str:
    """A text as the value of a word."""
    return "'" + str(text).replace("'", r"\'") + "'"


def given_keys(words: Iterable[str]) -> dict[str, str]:
    """The values of `key=value` words by their keys."""
    return dict(word.split("=", 1) for word in words if "=" in word)


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
