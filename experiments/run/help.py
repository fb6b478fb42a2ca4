"""What `--help` prints: what an app is for, its groups with the options that fit, its keys."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from experiments.run.declared import (
    EXPERIMENTS,
    RECIPE,
    AppForm,
    Choice,
    Key,
    app_form,
    app_keys,
    app_names,
    choices,
    command_words,
    fitting,
    fitting_of,
    option_keys,
    option_summary,
    recipes,
    use_config_folders,
    variant_of,
)

HELP_FLAGS = ("--help", "-h")
FLAGS = {
    "--help, -h": "this text; beside group=option also the keys of that option",
    "--config-dir <folder>": "options of one's own: <folder>/agent/mine.yaml is agent=mine",
    "--trust <name>": "a class of one's own that a file or a saved run may name",
    "--multirun, -m": "a sweep: one run for each combination of key=value,value (docs/sweeps.md)",
    "--cfg job": "the config that a command line comes to, as YAML; nothing runs",
    "--info searchpath": "where configs are looked for, and more (defaults-tree, plugins, ...)",
    "--version": "the version of Hydra, which composes the config",
}
NAME_WIDTH = 26


def app_help(app: AppForm, words: Sequence[str], command: str) -> str:
    """The help of the app, or of the one behind the same command that `words` choose.

    `command` is what the app was called by, `python -m experiments.plan` for example.
    """
    pattern = variant_of(app.variants, words)
    shown = app if pattern is None else app.variants[pattern]
    width = max(80, min(shutil.get_terminal_size((100, 24)).columns, 120))
    lines = [_as_called(shown.about, app.name, command), "", f"{command} key=value ...", ""]
    if shown is app and app.variants:
        lines += ["Other apps behind this command, each with a --help of its own:", ""]
        for word, variant in app.variants.items():
            lines += _entry(word.replace("?*", "[...]"), variant.summary, width)
        lines.append("")
    lines += _groups(app, shown, width)
    lines += ["Keys (key=value; what is given here is the default):", ""]
    lines += _key_lines("", app_keys(shown.config_name), width)
    named = dict(word.split("=", 1) for word in words if "=" in word)
    for choice in _distinct(choices(shown.config_name)):
        name = _package(choice)
        option = named.get(_group_word(choice), choice.option)
        only = not choice.package and len(fitting(choice)) == 1
        keys = option_keys(choice.group, option)
        if keys and (only or _group_word(choice) in named):
            lines += ["", f"Keys of {choice.group}={option}: "
                      f"{option_summary(choice.group, option)}", ""]  # fmt: skip
            lines += _key_lines(f"{name}.", keys, width)
    lines += ["", "Options:", ""]
    for flag, meaning in FLAGS.items():
        lines += _entry(flag, meaning, width)
    return "\n".join(lines)


def answer(command: Sequence[str]) -> None:
    """Print the help that a whole command line asks for, and end, if it runs an app."""
    at = command.index("-m") + 1 if "-m" in command else len(command)
    package, _, name = "".join(command[at : at + 1]).rpartition(".")
    if package == EXPERIMENTS and name in app_names():
        words, _, folders = command_words(command[at + 1 :])
        use_config_folders(folders)
        print(app_help(app_form(name), words, f"python -m {package}.{name}"))
        sys.exit()


def _as_called(about: str, name: str, command: str) -> str:
    """The text with its examples as they are to be typed here."""
    for written in dict.fromkeys((f"python -m {EXPERIMENTS}.", "python -m experiments.")):
        called = command.removesuffix(name)
        about = about.replace(written, called)
    return about


def _groups(app: AppForm, shown: AppForm, width: int) -> list[str]:
    taken = choices(shown.config_name)
    lines = []
    if taken:
        lines += ["Groups (group=option; what is given here is the default):", ""]
    for choice in _distinct(taken):
        same = [x for x in taken if (x.group, _stem(x)) == (choice.group, _stem(choice))]
        listed = ", ".join(dict.fromkeys(x.option for x in same))
        lines += _entry(f"{_group_word(choice)}={listed}", choice.comment, width)
        lines += _wrapped(", ".join(fitting_of(app, shown, choice)), "      ", width)
    found = recipes(shown.config_name)
    if found:
        lines += _entry(f"+{RECIPE}=", "what is chosen together", width)
        lines += _wrapped(", ".join(found), "      ", width)
    return [*lines, ""] if lines else []


def _stem(choice: Choice) -> str:
    return choice.package.partition(".")[0]


def _distinct(taken: Sequence[Choice]) -> list[Choice]:
    """The first choice of each group and package; `agents.fifo` and `agents.easy` are one."""
    found: dict[tuple[str, str], Choice] = {}
    for choice in taken:
        found.setdefault((choice.group, _stem(choice)), choice)
    return list(found.values())


def _group_word(choice: Choice) -> str:
    """What stands before `=` on a command line."""
    if "." in choice.package:
        return f"{choice.group}@{_stem(choice)}.<name>"
    return f"{choice.group}@{choice.package}" if choice.package else choice.group


def _package(choice: Choice) -> str:
    return choice.package or choice.group


def _key_lines(prefix: str, keys: Sequence[Key], width: int) -> Iterator[str]:
    for key in keys:
        value = "" if key.value is None else f"={key.value}"
        name = f"{prefix}{key.name}"
        if key.value is not None or key.comment:
            yield from _entry(f"{name}{value}", key.comment, width)


def _entry(name: str, meaning: str, width: int) -> list[str]:
    """A name and, beside it or below where the name is long, what it means."""
    head = f"  {name}"
    if not meaning:
        return [head]
    indent = " " * (NAME_WIDTH + 4)
    body = _wrapped(meaning, indent, width)
    if len(head) < len(indent) - 1:
        return [head.ljust(len(indent)) + body[0].lstrip(), *body[1:]]
    return [head, *body]


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
